"""Batches, and what the loss says of them."""
