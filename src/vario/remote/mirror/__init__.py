"""A local copy of runs that lie elsewhere, of which only what is read is fetched, within a bounded cache."""
