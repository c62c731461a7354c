"""Reports: what a run folder says, as numbers first and as text for people after."""
