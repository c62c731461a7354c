"""A run at a glance: its loss, progress, speed and most important numbers."""
