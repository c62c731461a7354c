"""Reduce tensors to Summaries on each device, and copy them to the host without waiting."""
