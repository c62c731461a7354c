"""News of a run while it is written, as server-sent events."""
