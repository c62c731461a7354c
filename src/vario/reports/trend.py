"""The trend of a noisy curve: a robust slope with its confidence interval."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from vario.logs.history import Curve, Values

MIN_POINTS = 5
MIN_WINDOW = 20
MAX_POINTS = 200
"""More points are reduced to this many medians, since the number of pairs grows with the square."""
CONFIDENCE = 1.96


@dataclass(frozen=True)
class Trend:
    """The slope at the end of a curve."""

    direction: str
    """falling, rising or flat; flat if the confidence interval contains zero."""
    slope_per_step: float
    low: float
    """The slope lies between `low` and `high` with 95 % confidence, if the points' noise is independent."""
    high: float
    first_step: int
    last_step: int
    num_points: int


def find_trend(curve: Curve) -> Trend | None:
    """Return the trend of the last quarter of the points, at least 20; None with fewer than 5 finite ones."""
    curve = curve.where(np.isfinite(curve.values))
    window = max(MIN_WINDOW, len(curve) // 4)
    steps, values = curve.steps[-window:].astype(np.float64), curve.values[-window:]
    num_points = len(steps)
    if num_points < MIN_POINTS:
        return None
    first, last = int(steps[0]), int(steps[-1])
    if num_points > MAX_POINTS:
        pieces = list(zip(np.array_split(steps, MAX_POINTS), np.array_split(values, MAX_POINTS), strict=True))
        steps = np.array([np.median(piece[0]) for piece in pieces])
        values = np.array([np.median(piece[1]) for piece in pieces])
    slope, low, high = theil_sen(steps, values)
    direction = "falling" if high < 0 else "rising" if low > 0 else "flat"
    return Trend(direction, slope, low, high, first, last, num_points)


def theil_sen(steps: Values, values: Values) -> tuple[float, float, float]:
    """Return the median slope between all pairs of points, and its 95 % confidence limits (Sen, 1968)."""
    count = len(steps)
    before, after = np.triu_indices(count, k=1)
    slopes = np.sort((values[after] - values[before]) / (steps[after] - steps[before]))
    # The standard deviation of the rank correlation of unrelated numbers, which gives the ranks of the limits.
    deviation = CONFIDENCE * sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = max(0, round((len(slopes) - deviation) / 2) - 1)
    high = min(len(slopes) - 1, round((len(slopes) + deviation) / 2))
    return float(np.median(slopes)), float(slopes[low]), float(slopes[high])
