"""PyTorch: hooks, Summaries on CPU and CUDA, and the operators that stay inside compiled graphs."""

# Refuses a torch that is too old, ahead of every module here that uses what such a torch lacks.
import vario.backends.torch.releases  # noqa: F401
