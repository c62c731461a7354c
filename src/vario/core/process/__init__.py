"""Processes: which one this is, forks, scripts run in it, its end, its memory, and errors that must not leave vario."""
