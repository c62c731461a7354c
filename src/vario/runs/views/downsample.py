"""Fewer points for the same picture."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Steps = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


def downsample(steps: Steps, values: Values, max_points: int) -> tuple[Steps, Values]:
    """About `max_points` points with the first, last, lowest and highest of each stretch, and every NaN and Inf.

    Non-finite points are kept on top of `max_points`: they are what one looks for.
    """
    if len(steps) <= max_points:
        return steps, values
    finite = np.flatnonzero(np.isfinite(values))
    num_stretches = max(1, min(max_points // 4, len(finite)))
    bounds = np.linspace(0, len(finite), num_stretches + 1).astype(np.int64)[:-1]
    keep = np.zeros(len(steps), np.bool_)
    keep[~np.isfinite(values)] = True
    keep[[0, -1]] = True
    if len(finite):
        ends = np.append(bounds[1:], len(finite))
        keep[finite[bounds]] = True
        keep[finite[ends - 1]] = True
        stretch = np.repeat(np.arange(num_stretches), ends - bounds)
        # Sorted by value within each stretch, the lowest comes first and the highest last.
        by_value = finite[np.lexsort((values[finite], stretch))]
        keep[by_value[bounds]] = True
        keep[by_value[ends - 1]] = True
    chosen = np.flatnonzero(keep)
    return steps[chosen], values[chosen]
