"""Pages as HTML: the built dashboard, the gallery of faults, and a run in one file."""
