"""What goes into the model, compared with its own past: another scale, another share of padding, the same again.

A few elements of each input show at every step what the rows of its activation show once in a while.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

MEAN, SPREAD, COMMON, SAME = "mean", "spread", "common", "same"
"""What changes: the mean and the standard deviation of the elements, the share of the most common number, and whether
the sample is that of the step before."""

KNOWN, LASTING = 40, 4
"""Looks after which an input is known, and looks in a row that make a change."""
BEYOND = 0.75
"""How far beyond all earlier looks a change must be, in units of their range."""
LEAST_OF_SPREAD = {MEAN: 0.5, SPREAD: 0.5}
"""The least change, in units of the usual standard deviation of the elements."""
LEAST_SHARE = 0.2
LEAST_ELEMENTS = 8
"""Fewer elements may well be the same by chance."""
MOST_CHANGES = 3
"""Changes of one input that are told: one that changes more often is meant to."""

Change = tuple[str, float, float, int]
"""What has changed, what it was, what it is, and since which step."""


@dataclass
class _Past:
    """The range of one number so far, and its latest values, which are not in the range yet."""

    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0
    num: int = 0
    lately: deque[float] = field(default_factory=lambda: deque(maxlen=LASTING))

    def add(self, value: float) -> None:
        if len(self.lately) == LASTING:
            oldest = self.lately[0]
            self.low, self.high = min(self.low, oldest), max(self.high, oldest)
            self.total += oldest
            self.num += 1
        self.lately.append(value)

    @property
    def usual(self) -> float:
        return self.total / self.num

    def distance(self) -> float:
        """Return how far all latest values are beyond the range, on one side of it."""
        return max(min(self.lately) - self.high, self.low - max(self.lately))


class InputWatch:
    """Knows one input of a model."""

    def __init__(self) -> None:
        self._begin()
        self._num_changes = 0

    def _begin(self) -> None:
        self._pasts = {what: _Past() for what in (MEAN, SPREAD, COMMON)}
        self._last: npt.NDArray[Any] | None = None
        self._num_same = self._num_other = 0
        self._steps: deque[int] = deque(maxlen=LASTING)

    def look(self, step: int, sample: npt.NDArray[Any]) -> Sequence[Change]:
        """Compare the sample of a step; return what has changed for good, when that is certain."""
        if self._num_changes >= MOST_CHANGES:
            return ()
        is_same = self._last is not None and np.array_equal(sample, self._last)
        self._last = sample
        values = sample.astype(np.float64)
        values = values[np.isfinite(values)]
        if len(values) < LEAST_ELEMENTS:
            return ()
        self._steps.append(step)
        spread = float(values.std())
        for what, value in ((MEAN, float(values.mean())), (SPREAD, spread), (COMMON, _common_share(values))):
            self._pasts[what].add(value)
        found = [*self._same(is_same and spread > 0), *self._changes()]
        if found:
            self._begin()
            self._num_changes += 1
        return found

    def _same(self, is_same: bool) -> Sequence[Change]:
        if not is_same:
            # An input that sometimes comes twice in a row may well come more often.
            self._num_other = self._num_other + 1 if not self._num_same else 0
            self._num_same = 0
            return ()
        self._num_same += 1
        return [(SAME, 0.0, 1.0, self._steps[0])] if self._num_same == LASTING and self._num_other >= KNOWN else ()

    def _changes(self) -> list[Change]:
        if self._pasts[MEAN].num < KNOWN:
            return []
        scale = self._pasts[SPREAD].usual
        least = {MEAN: LEAST_OF_SPREAD[MEAN] * scale, SPREAD: LEAST_OF_SPREAD[SPREAD] * scale, COMMON: LEAST_SHARE}
        found = []
        for what, past in self._pasts.items():
            if past.distance() > max(BEYOND * (past.high - past.low), least[what]):
                found.append((what, past.usual, sum(past.lately) / LASTING, self._steps[0]))
        return found


def _common_share(values: npt.NDArray[np.float64]) -> float:
    """Return the share of the most common number."""
    ordered = np.sort(values)
    ends = np.flatnonzero(ordered[1:] != ordered[:-1])
    bounds = np.concatenate(([-1], ends, [len(ordered) - 1]))
    return float(np.diff(bounds).max()) / len(ordered)
