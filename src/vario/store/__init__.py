"""Writes and recovers the files of a run; `vario.sinks.store` is the sink that does so for a Monitor."""
