"""Where each distributed runtime keeps gradients and optimizer state."""
