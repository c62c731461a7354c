"""Sinks that forward chosen numbers of a run to other tools while it is recorded.

Each has a thread of its own, so that neither training nor the run's own files wait for a tool or its network.
"""
