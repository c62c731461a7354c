"""Reports on a run: functions that find the numbers, and functions that turn them into text."""
