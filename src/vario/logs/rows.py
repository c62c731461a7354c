"""Collects the numbers of a log row by row, in little memory, and returns curves without overlaps."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vario.logs.history import LOSS, Curve, Note, Steps

NOT_LOGGED = math.nan
NO_ROW = -2
RESTARTS_NAMED = 3


class Rows:
    """Numbers in the order they were logged. A later row of the same step replaces an earlier one."""

    def __init__(self) -> None:
        self._steps = array("q")
        self._epochs = array("d")
        self._times = array("d")
        self._columns: dict[str, tuple[array[int], array[float]]] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: int, values: Mapping[str, Any], epoch: float = NOT_LOGGED, time: float = NOT_LOGGED) -> int:
        """Append one row without its non-numeric values and return its index; NO_ROW if its step is out of range."""
        index = len(self._steps)
        try:
            self._steps.append(step)
        except OverflowError:
            return NO_ROW
        self._epochs.append(epoch)
        self._times.append(time)
        for name, value in values.items():
            # The common case first: a history may have millions of numbers.
            found = value if type(value) is float else number(value)
            if found is not None:
                column = self._columns.get(name)
                if column is None:
                    column = self._columns[name] = (array("q"), array("d"))
                column[0].append(index)
                column[1].append(found)
        return index

    def curves(self, only: Sequence[int] | None = None) -> tuple[dict[str, Curve], list[Note]]:
        """Return a curve for each name, and a note for each time the steps went back; `only` selects rows."""
        steps = np.array(self._steps, np.int64)
        epochs, times = np.array(self._epochs), np.array(self._times)
        kept, notes = self._without_overlap(steps)
        if only is not None and len(only) != len(steps):
            chosen = np.zeros(len(steps), np.bool_)
            chosen[np.array(only, np.int64)] = True
            kept &= chosen
        curves = {}
        for name, (indices, values) in self._columns.items():
            at, points = np.array(indices, np.int64), np.array(values)
            used = np.flatnonzero(kept[at])
            used = used[_last_of_each_step(steps[at[used]])]
            if len(used):
                at = at[used]
                curves[name] = Curve(steps[at], points[used], epochs[at], times[at])
        return curves, notes

    def _without_overlap(self, steps: Steps) -> tuple[Any, list[Note]]:
        """Which rows to keep if a restarted job repeated some steps: the later ones."""
        main = self._columns.get(LOSS) or max(self._columns.values(), key=lambda column: len(column[0]), default=None)
        kept = np.ones(len(steps), np.bool_)
        if main is None:
            return kept, []
        at = np.array(main[0], np.int64)
        back = np.flatnonzero(np.diff(steps[at]) < 0) + 1
        if not len(back):
            return kept, []
        # Keep a row if no later restart begins at its step or before.
        restarts = np.full(len(steps) + 1, np.iinfo(np.int64).max)
        restarts[at[back]] = steps[at[back]]
        earliest_to_come = np.minimum.accumulate(restarts[::-1])[::-1][1:]
        if len(back) > RESTARTS_NAMED:
            return steps < earliest_to_come, [Note("steps_went_back_often", {"count": len(back)})]
        pairs = [(int(steps[at[i - 1]]), int(steps[at[i]])) for i in back]
        return steps < earliest_to_come, [Note("steps_went_back", {"from": old, "to": new}) for old, new in pairs]


def _last_of_each_step(steps: Steps) -> Steps:
    """The last position of each step, in step order."""
    return len(steps) - 1 - np.unique(steps[::-1], return_index=True)[1]


def number(value: Any) -> float | None:
    """Convert a log value to a float: numbers and numeric text; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return None
    if isinstance(value, str):
        try:
            return float(value.strip().rstrip("%"))
        except ValueError:
            return None
    return None


def whole(value: Any) -> int | None:
    """Convert a log value to an integer; None if it is none or out of range."""
    found = number(value)
    return int(found) if found is not None and abs(found) < 2**63 else None
