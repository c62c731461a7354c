"""What one looks at: series, curves, heat maps and grids, merged over ranks, and a run's vital signs."""
