"""Ranks that differ, wait or fall behind."""
