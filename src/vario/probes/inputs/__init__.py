"""Probes of what goes in: batches, inputs of the model and targets of the loss, compared with their past."""
