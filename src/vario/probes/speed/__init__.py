"""Probes of time and memory: steps, passes, waiting, communication, throughput, device memory."""
