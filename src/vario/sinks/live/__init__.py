"""Sinks that pass chosen numbers of a run on to other tools while it is recorded.

Each has a thread of its own, so that neither training nor the run's own files wait for a tool or its network.
"""
