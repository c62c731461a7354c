"""Numbers of several ranks as one, where only the numbers are left and not the rows behind them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vario.runs.views.merged_series import Values

ADDED = frozenset({"count", "nans", "infs"})
SQUARED = frozenset({"rms", "std"})


def merged_numbers(statistic: str, numbers: Sequence[Values], counts: Sequence[Values]) -> Values:
    """What a statistic of the whole is like, from those of its shares; NaN has no say beside a number.

    Of lows and highs it gives bounds of the true ones: the shares need not be at their highest in the same step. The
    spread of the shares' means is not in a `std`.
    """
    stacked = np.stack(numbers)
    known = ~np.isnan(stacked)
    nothing = ~known.any(axis=0)
    filled = np.where(known, stacked, 0.0)
    with np.errstate(all="ignore"):
        if statistic in ADDED:
            found = filled.sum(axis=0)
        elif statistic == "norm":
            found = np.sqrt(np.square(filled).sum(axis=0))
        elif statistic == "min":
            found = np.fmin.reduce(stacked)
        elif statistic in ("max", "absmax"):
            found = np.fmax.reduce(stacked)
        else:
            weights = np.where(known, np.stack(counts), 0.0)
            powers = np.square(filled) if statistic in SQUARED else filled
            found = (powers * weights).sum(axis=0) / weights.sum(axis=0)
            found = np.sqrt(found) if statistic in SQUARED else found
    return np.where(nothing, np.nan, found)


def folded_numbers(fold: str, numbers: Sequence[Values]) -> Values:
    """The smallest, mean or largest of the numbers of several ranks, or how far they are apart."""
    stacked = np.stack(numbers)
    known = ~np.isnan(stacked)
    with np.errstate(all="ignore"):
        if fold == "mean":
            return np.asarray(np.where(known, stacked, 0.0).sum(axis=0) / known.sum(axis=0))
        low, high = np.fmin.reduce(stacked), np.fmax.reduce(stacked)
    return np.asarray(low if fold == "min" else high if fold == "max" else high - low)
