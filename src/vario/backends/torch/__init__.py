"""PyTorch: hooks, Summaries on CPU and CUDA, and the operators that stay inside compiled graphs."""
