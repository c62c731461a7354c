"""PyTorch: hooks, Summaries on CPU and CUDA, and the operators that stay inside compiled graphs."""

# Refuses a torch that is too old, before any module here uses what it lacks.
import vario.backends.torch.releases  # noqa: F401
