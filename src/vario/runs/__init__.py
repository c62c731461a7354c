"""Runs as they lie on disk: open one, read its series, frames and tables, live or later."""
