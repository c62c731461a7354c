"""What vario asks of a tensor framework: one required `Backend`, and capabilities that a backend may offer."""
