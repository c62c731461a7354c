"""Whether the gradients of a model have changed together and for good, from one norm per parameter at every step.

A change that hardly moves the loss, in the data or in code that no setting shows, mostly moves how large gradients are
in some layers compared with others. That pattern is far steadier than the gradients are, so that a shift which no
single one shows is clear over all of them. Its unit is how far the same pattern strayed earlier in the same run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vario.core.quantities import GRADIENT_SHIFT

Norms = npt.NDArray[np.float64]

EVERY = 4
"""Steps between two comparisons."""
LATELY, BEFORE = 8, 24
"""The steps whose medians are compared."""
KNOWN = 14
"""Comparisons after which it is known how far the pattern strays."""
PATTERN_FAR, PATTERN_SIZE = 3.0, 0.15
COMMON_FAR, COMMON_SIZE = 5.3, 0.4
"""How many times its usual size, and by how much (of logarithms), the pattern, and the size of all, must change."""
FURTHER = 1.65
"""How many times as far as ever before."""
LEAST_SPREAD, MOST = 0.03, 20.0
LASTING = 2
"""Comparisons in a row that make a change."""
FEWEST = 6
"""Of fewer parameters there is no pattern."""


class Shift(NamedTuple):
    """A lasting change."""

    is_pattern: bool
    """Whether some gradients changed compared with others; otherwise all of them did alike."""
    ratio: float
    """How many times larger the one that changed most has become."""
    name: str
    """That one; empty if all changed alike."""
    times: float
    """How many times further than usual."""


def shift_name(shift: Shift) -> str:
    """Return the name of the plain number that tells of a change."""
    return f"{GRADIENT_SHIFT}{'pattern' if shift.is_pattern else 'all'}:{shift.name}"


class GradientShift:
    """Follows the gradients of one backward pass of a loop's steps."""

    def __init__(self) -> None:
        self._begin(())

    def _begin(self, names: Sequence[str]) -> None:
        self._names = names
        self._rows: deque[Norms] = deque(maxlen=LATELY + BEFORE)
        self._num = self._num_found = 0
        self._squares: Norms = np.zeros(len(names))
        self._common_square = 0.0
        self._furthest = [1.0, 1.0]
        self._held = [0, 0]

    def follow(self, names: Sequence[str], rows: Sequence[Norms]) -> Shift | None:
        """Add the norms of the latest steps; return a change when it is certain, once in a run."""
        if names is not self._names and list(names) != list(self._names):
            self._begin(names)
        self._rows.extend(rows)
        if len(self._rows) < LATELY + BEFORE or len(names) < FEWEST or self._num_found:
            return None
        table = np.array(self._rows)
        is_there: npt.NDArray[np.bool_] = np.asarray((table > 0).all(axis=0) & np.isfinite(table).all(axis=0))
        if is_there.sum() < FEWEST:
            return None
        with np.errstate(all="ignore"):
            sizes = np.where(is_there, np.log(table), np.nan)
        common = np.nanmedian(sizes, axis=1)
        pattern = np.where(is_there, sizes - common[:, None], 0.0)
        moved = np.median(pattern[BEFORE:], axis=0) - np.median(pattern[:BEFORE], axis=0)
        moved_all = float(np.median(common[BEFORE:]) - np.median(common[:BEFORE]))
        found = self._judge(moved[is_there], is_there, moved_all) if self._num >= KNOWN else None
        self._learn(moved, moved_all)
        if found is None:
            return None
        self._num_found += 1
        if not found[0]:
            return Shift(False, float(np.exp(moved_all)), "", found[1])
        at = int(np.argmax(np.abs(moved) / self._spread()))
        return Shift(True, float(np.exp(moved[at])), names[at], found[1])

    def _spread(self) -> Norms:
        return np.maximum(np.sqrt(self._squares / max(self._num, 1)), LEAST_SPREAD)

    def _judge(self, moved: Norms, is_there: npt.NDArray[np.bool_], moved_all: float) -> tuple[bool, float] | None:
        spread = self._spread()[is_there]
        pattern = float(np.sqrt(np.mean(np.minimum(np.abs(moved) / spread, MOST) ** 2)))
        size = float(np.sqrt(np.mean(moved**2)))
        common = abs(moved_all) / max(np.sqrt(self._common_square / self._num), LEAST_SPREAD)
        far = (
            (pattern, pattern > PATTERN_FAR and size > PATTERN_SIZE),
            (common, common > COMMON_FAR and abs(moved_all) > COMMON_SIZE),
        )
        for at, (times, is_far) in enumerate(far):
            is_far = is_far and times > FURTHER * self._furthest[at]
            self._held[at] = self._held[at] + 1 if is_far else 0
            if not is_far:
                self._furthest[at] = max(self._furthest[at], times)
            elif self._held[at] == LASTING:
                return at == 0, times
        return None

    def _learn(self, moved: Norms, moved_all: float) -> None:
        self._num += 1
        usual = 9 * self._squares / max(self._num - 1, 1) if self._num > KNOWN else np.inf
        self._squares += np.minimum(moved**2, usual)
        usual_all = 9 * self._common_square / max(self._num - 1, 1) if self._num > KNOWN else np.inf
        self._common_square += min(moved_all**2, usual_all)
