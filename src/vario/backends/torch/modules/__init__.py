"""What passes through the modules of a model, and what happens inside them."""
