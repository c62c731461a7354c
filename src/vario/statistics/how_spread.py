"""How is it spread? Mean and standard deviation."""

from __future__ import annotations

import numpy as np

from vario.core.records import COUNT, SUM, SUM_SQUARES, Table
from vario.statistics import Values, statistic


@statistic("sum")
def mean(summaries: Table) -> Values:
    """Arithmetic mean."""
    return summaries[:, SUM] / summaries[:, COUNT]


@statistic("sum", "sum_squares")
def std(summaries: Table) -> Values:
    """Standard deviation of the elements (divided by their number, not by one less)."""
    average = summaries[:, SUM] / summaries[:, COUNT]
    variance = summaries[:, SUM_SQUARES] / summaries[:, COUNT] - np.square(average)
    # Rounding can leave a variance of -1e-17; NaN must stay NaN, which maximum keeps.
    return np.sqrt(np.maximum(variance, 0.0))
