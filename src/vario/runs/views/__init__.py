"""Views of a run: series, curves, heat maps and grids, merged over ranks, and its vital signs."""
