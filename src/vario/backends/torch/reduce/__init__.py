"""From tensors to Summaries, on each device, and the copies that reach the host without waiting."""
