"""The dashboard's server: serves what `runs` reads over HTTP. It is read-only; nothing here writes to a run."""
