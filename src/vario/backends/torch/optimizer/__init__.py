"""What updates do to parameters, and what an optimizer is set to."""
