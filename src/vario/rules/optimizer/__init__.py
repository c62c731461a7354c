"""Updates, optimizer state, learning rates and settings."""
