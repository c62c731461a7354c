"""The training loop, followed: steps, passes, backward, updates, and the hooks that tell of them."""
