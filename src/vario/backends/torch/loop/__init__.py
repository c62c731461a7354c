"""Following the training loop: steps, passes, backward, updates, and the hooks that detect them."""
