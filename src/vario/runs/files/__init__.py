"""The files of a run: its folder, its JSON, its rows and rollups, opened within limits."""
