"""Probes of tensors: weights, gradients, optimizer state, activations, and what is derived from them."""
