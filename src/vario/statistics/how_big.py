"""How big is it? Norm, root mean square and the extremes."""

from __future__ import annotations

import numpy as np

from vario.core.records import COUNT, MAX, MIN, SUM_SQUARES, Table
from vario.statistics import Values, statistic


@statistic("sum_squares")
def norm(summaries: Table) -> Values:
    """Euclidean norm: the square root of the sum of squares."""
    return np.sqrt(summaries[:, SUM_SQUARES])


@statistic("sum_squares")
def rms(summaries: Table) -> Values:
    """Root mean square: the norm independent of the tensor's size."""
    return np.sqrt(summaries[:, SUM_SQUARES] / summaries[:, COUNT])


@statistic("min")
def min_(summaries: Table) -> Values:
    """Smallest element; NaN elements are ignored."""
    return summaries[:, MIN]


@statistic("max")
def max_(summaries: Table) -> Values:
    """Largest element; NaN elements are ignored."""
    return summaries[:, MAX]


@statistic("min", "max")
def absmax(summaries: Table) -> Values:
    """Largest magnitude; NaN elements are ignored."""
    return np.maximum(np.abs(summaries[:, MIN]), np.abs(summaries[:, MAX]))
