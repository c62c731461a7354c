"""How fast a run trains, where the time of its steps goes, and what watching costs."""
