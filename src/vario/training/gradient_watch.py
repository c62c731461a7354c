"""The norm of each gradient at every step, compared with its own recent past.

An overhead budget has the rows of gradients recorded rarely where steps are short. But one norm per parameter is nearly
as cheap as one for all together. It shows, at the step and by name, a gradient that vanishes, stands still or takes
another size than the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Norms = npt.NDArray[np.float64]

MOST_PARAMETERS = 4096
KNOWN = 40
"""Looks after which a norm is known."""
LASTING = 3, 4, 6
"""Looks in a row that make a change: of size, to nothing, and to the same number as before."""
RATE, RATE_AT_FIRST = 0.03, 0.2
LEAST_SPREAD = 0.15
FAR, FACTOR = 10.0, 5.0
"""How many times its usual spread, and by what factor, a norm has to differ from what the others did."""
FEW = 6
"""Of fewer parameters the middle one says nothing about all."""
MOST_NAMED = 4


class GradientWatch:
    """Knows the usual norms of the gradients of one set of parameters."""

    _names: Sequence[str]
    _level: Norms
    """The usual logarithm of each norm."""
    _spread: Norms
    _age: Norms
    _last: Norms

    def __init__(self) -> None:
        self._begin(())

    def look(self, names: Sequence[str], norms: Norms) -> Mapping[str, float]:
        """Compare one norm per parameter, zero where there is no gradient.

        Returns for those that have changed lastingly, the first time: their size in units of the usual one, 0 for one
        that has vanished, 1 for one that is the same to the last bit.
        """
        if names is not self._names and list(names) != list(self._names):
            self._begin(names)
        if not np.isfinite(norms).all():
            return {}
        is_there = norms > 0
        with np.errstate(all="ignore"):
            sizes = np.where(is_there, np.log(norms), self._level)
        self._level = np.where(self._age == 0, sizes, self._level)
        off = sizes - self._level
        # What all gradients do is not about one of them: the loss and the norm of all show it.
        common = float(np.median(off[is_there])) if is_there.sum() >= FEW else 0.0
        apart = off - common
        spread = np.maximum(1.25 * self._spread, LEAST_SPREAD)
        is_known = self._age >= KNOWN
        is_off = is_known & is_there & (np.abs(apart) > np.maximum(FAR * spread, np.log(FACTOR)))
        is_gone = is_known & ~is_there
        is_same = is_known & is_there & (norms == self._last)
        for count, is_true in ((self._off, is_off), (self._gone, is_gone), (self._same, is_same)):
            count += 1
            count *= is_true
        found = self._changes(names, apart)
        rate = np.maximum(RATE, np.minimum(RATE_AT_FIRST, 1 / (self._age + 1)))
        cut = np.clip(off, -3 * spread, 3 * spread)
        self._level += rate * cut
        self._spread += rate * (np.abs(np.clip(apart, -3 * spread, 3 * spread)) - self._spread)
        # A gradient that is zero now and then has never been known.
        self._age = np.where(is_there, self._age + 1, np.where(is_known, self._age, 0))
        self._last = norms
        return found

    def _begin(self, names: Sequence[str]) -> None:
        self._names = names
        self._level, self._spread, self._age = (np.zeros(len(names)) for _ in range(3))
        self._last = np.full(len(names), -1.0)
        self._off, self._gone, self._same = (np.zeros(len(names), np.int64) for _ in range(3))

    def _changes(self, names: Sequence[str], apart: Norms) -> dict[str, float]:
        """Return what has lasted long enough since the last look, and take it for the usual from now on."""
        counts = self._off, self._gone, self._same
        is_off, is_gone, is_same = (count == lasting for count, lasting in zip(counts, LASTING, strict=True))
        if not (is_off | is_gone | is_same).any():
            return {}
        found: dict[str, float] = {}
        for is_true, value in ((is_gone, 0.0), (is_same, 1.0)):
            if not is_true.all():  # of all of them there is another reason, and other rules find it
                # Where a graph is cut, all before it have no gradient: the last of them is next to the cut.
                found.update({names[at]: value for at in np.flatnonzero(is_true)[: -MOST_NAMED - 1 : -1]})
        if 2 * is_off.sum() <= len(names):
            furthest = np.flatnonzero(is_off)[np.argsort(-np.abs(apart[is_off]))]
            found.update({names[at]: float(np.exp(apart[at])) for at in furthest[:MOST_NAMED]})
        self._age = np.where(is_off | is_gone, 0, self._age)
        self._spread = np.where(is_off | is_gone, 0.0, self._spread)
        return found
