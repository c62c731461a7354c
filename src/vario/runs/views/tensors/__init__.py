"""What is known of a tensor beside its statistics: distributions, channels, experts, and how gradients agree."""
