"""Reading a run while it is written."""
