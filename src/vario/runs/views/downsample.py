"""Downsamples curves without changing the picture."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Steps = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


def downsample(steps: Steps, values: Values, max_points: int) -> tuple[Steps, Values]:
    """About `max_points` points with the first, last, lowest and highest of each bucket, and every NaN and Inf.

    Non-finite points are kept in addition to `max_points`: they matter most.
    """
    if len(steps) <= max_points:
        return steps, values
    finite = np.flatnonzero(np.isfinite(values))
    num_buckets = max(1, min(max_points // 4, len(finite)))
    bounds = np.linspace(0, len(finite), num_buckets + 1).astype(np.int64)[:-1]
    keep = np.zeros(len(steps), np.bool_)
    keep[~np.isfinite(values)] = True
    keep[[0, -1]] = True
    if len(finite):
        ends = np.append(bounds[1:], len(finite))
        keep[finite[bounds]] = True
        keep[finite[ends - 1]] = True
        bucket = np.repeat(np.arange(num_buckets), ends - bounds)
        # Sorted by value within each bucket, the lowest comes first and the highest last.
        by_value = finite[np.lexsort((values[finite], bucket))]
        keep[by_value[bounds]] = True
        keep[by_value[ends - 1]] = True
    chosen = np.flatnonzero(keep)
    return steps[chosen], values[chosen]
