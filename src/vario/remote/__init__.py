"""Runs that lie elsewhere: on object stores, on other hosts over SSH, on anything that fsspec reads."""
