"""Runs on disk: open one and read its series, frames and tables, live or later."""
