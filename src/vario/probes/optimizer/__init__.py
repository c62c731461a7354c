"""Probes of the optimizer: its settings, learning rates, clipping, and the gradients it leaves."""
