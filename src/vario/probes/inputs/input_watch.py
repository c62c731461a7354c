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

from vario.core.quantities import OFTEN

MEAN, SPREAD, COMMON, SAME = "mean", "spread", "common", "same"
"""What changes: the mean and the standard deviation of the elements, the share of the most common number, and whether
the sample is that of the step before."""

KNOWN, LASTING = 40, 4
"""Looks after which an input is known, and looks in a row that make a change."""
BEYOND = 0.75
"""How far beyond all earlier looks a change must be, in units of their range."""
LEAST_OF_SPREAD = {MEAN: 0.5, SPREAD: 0.5}
"""The least change, in units of the usual standard deviation of the elements."""
LEAST_OF_MEAN = 0.2
"""The least change of the mean and the spread, in units of the usual mean: what hardly varied may vary a little."""
LEAST_SHARE = 0.2
OF_MADE_NUMBERS = 4.0
"""How many times further than others a target of numbers must move: agents make theirs themselves."""
LEAST_ELEMENTS = 8
"""Fewer elements may well be the same by chance."""
COLLAPSED = 0.05
"""The share of its smallest value so far below which hardly anything is left of a spread."""
ODD, AMONG = 4, 24
"""Looks that make a change if they come now and then, among so many: one bad shard of several."""
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
    odd: deque[tuple[int, int, float]] = field(default_factory=deque)
    """Looks beyond the range, which do not widen it for a while: their number, their step and the value."""
    looks: int = 0

    def add(self, step: int, value: float, least: float) -> None:
        """Take a look; one beyond the range by `least` is odd."""
        self.looks += 1
        if self.odd and self.odd[0][0] <= self.looks - AMONG:
            self._widen(self.odd.popleft()[2])
        if len(self.lately) == LASTING and not any(number == self.looks - LASTING for number, _, _ in self.odd):
            self._widen(self.lately[0])
        self.lately.append(value)
        if max(value - self.high, self.low - value) > least:
            self.odd.append((self.looks, step, value))

    def _widen(self, value: float) -> None:
        self.low, self.high = min(self.low, value), max(self.high, value)
        self.total += value
        self.num += 1

    @property
    def usual(self) -> float:
        return self.total / self.num

    def distance(self) -> float:
        """Return how far all latest values are beyond the range, on one side of it."""
        return max(min(self.lately) - self.high, self.low - max(self.lately))

    def has_collapsed(self) -> bool:
        """Whether hardly anything is left of what was never small before."""
        return self.num >= KNOWN and max(self.lately) < COLLAPSED * self.low


class InputWatch:
    """Knows one input of a model, or one target of its loss."""

    def __init__(self, times: float = 1.0) -> None:
        """`times`: how many times further than usual a mean or spread must move."""
        self._times = times
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
        least = self._least()
        for what, value in ((MEAN, float(values.mean())), (SPREAD, spread), (COMMON, _common_share(values))):
            self._pasts[what].add(step, value, least[what])
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

    def _least(self) -> dict[str, float]:
        """How far beyond its range each number must be; infinite before the input is known."""
        if self._pasts[MEAN].num < KNOWN:
            return dict.fromkeys(self._pasts, math.inf)
        scale, level = self._pasts[SPREAD].usual, abs(self._pasts[MEAN].usual)
        least = {what: max(share * scale, LEAST_OF_MEAN * level) for what, share in LEAST_OF_SPREAD.items()}
        least[COMMON] = LEAST_SHARE
        return {
            what: (1.0 if what == COMMON else self._times) * max(BEYOND * (past.high - past.low), least[what])
            for what, past in self._pasts.items()
        }

    def _changes(self) -> list[Change]:
        least = self._least()
        found = []
        for what, past in self._pasts.items():
            if past.distance() > least[what] or (what == SPREAD and past.has_collapsed()):
                found.append((what, past.usual, sum(past.lately) / LASTING, self._steps[0]))
            elif len(past.odd) >= ODD and past.looks - past.odd[0][0] >= 2 * ODD:
                _, since, _ = past.odd[0]
                found.append((what + OFTEN, past.usual, sum(value for _, _, value in past.odd) / len(past.odd), since))
        return found


def _common_share(values: npt.NDArray[np.float64]) -> float:
    """Return the share of the most common number."""
    ordered = np.sort(values)
    ends = np.flatnonzero(ordered[1:] != ordered[:-1])
    bounds = np.concatenate(([-1], ends, [len(ordered) - 1]))
    return float(np.diff(bounds).max()) / len(ordered)
