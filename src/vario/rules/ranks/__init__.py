"""Rules about ranks that differ, wait or fall behind."""
