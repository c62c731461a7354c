"""NumPy: training loops that report their events, and the reference that other backends are tested against."""

from vario.backends.numpy.model import NumpyModel
from vario.backends.numpy.summaries import NumpySummaries, summarise

__all__ = ["NumpyModel", "NumpySummaries", "summarise"]
