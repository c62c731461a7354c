"""Rules about updates, optimizer state, learning rates and settings."""
