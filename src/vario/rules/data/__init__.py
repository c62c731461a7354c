"""Rules about batches and the loss."""
