"""A run while it is written."""
