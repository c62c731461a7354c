"""The lowest and highest of many numbers in the cells of a table of targets and buckets of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vario.runs.views.merged_series import Flags, Steps, Values


class Columns:
    """Buckets of steps that follow one another."""

    def __init__(self, first: Steps, last: Steps) -> None:
        self.first = first
        self.last = last

    def __len__(self) -> int:
        return len(self.first)

    def of(self, steps: Steps) -> Steps:
        """Return the column of each step; a step between two columns belongs to the later one."""
        return np.minimum(np.searchsorted(self.last, steps, "left"), len(self) - 1)


def distinct(steps: Steps) -> Steps:
    """Return the distinct steps, in order."""
    if not len(steps):
        return steps
    lowest, highest = int(steps.min()), int(steps.max())
    if highest - lowest < 4 * len(steps):
        return np.flatnonzero(np.bincount(steps - lowest)) + lowest
    return np.unique(steps)


def even_columns(spans: npt.NDArray[np.int64], limit: int) -> Columns:
    """Build at most this many columns from spans (first and last step), sorted by last step."""
    num = min(len(spans), max(1, limit))
    bounds = np.linspace(0, len(spans), num + 1).astype(np.int64)
    if not num:
        return Columns(np.zeros(0, np.int64), np.zeros(0, np.int64))
    return Columns(np.minimum.reduceat(spans[:, 0], bounds[:-1]), spans[bounds[1:] - 1, 1])


def wide_columns(spans: npt.NDArray[np.int64], width: int, limit: int) -> Columns:
    """Build at most this many columns of at least this width: mixing short and long spans would look uneven."""
    found: list[tuple[int, int]] = []
    begin: int | None = None
    for first, last in spans.tolist():
        begin = first if begin is None else min(begin, first)
        if last - begin + 1 >= width:
            found.append((begin, last))
            begin = None
    if begin is not None:
        found.append((begin, int(spans[-1, 1])))
    return even_columns(np.array(found, np.int64).reshape(-1, 2), limit)


class HeatTable:
    """Accumulates numbers; each cell has its lowest and highest value, and whether any was not finite."""

    def __init__(self, num_rows: int, columns: Columns, is_signed: bool) -> None:
        """The lowest values are not kept if nothing is negative."""
        self.columns = columns
        self.is_signed = is_signed
        shape = num_rows, len(columns)
        self.low: Values = np.full(shape, np.nan)
        self.high: Values = np.full(shape, np.nan)
        self.bad: Flags = np.zeros(shape, np.bool_)
        self.has: Flags = np.zeros(shape, np.bool_)
        self.counts: Values = np.zeros((num_rows, 1))
        """The number of elements of each row's tensor."""

    def weigh(self, rows: Steps, codes: Steps, counts: Values) -> None:
        """Record how many elements the added tensors have."""
        chosen = rows[codes]
        np.fmax.at(self.counts[:, 0], chosen[chosen >= 0], counts[chosen >= 0])

    def add(self, rows: Steps, codes: Steps, steps: Steps, low: Values, high: Values, bad: Flags) -> None:
        """Add numbers sorted by code, which is an index into `rows`; a row of -1 is skipped.

        A value that is not finite only marks its cell as bad.
        """
        if not len(codes):
            return
        num = int(np.searchsorted(codes, codes[0], "right"))
        if len(codes) % num == 0:
            blocks, patterns = codes.reshape(-1, num), steps.reshape(-1, num)
            if (blocks[:, :1] == blocks).all() and (patterns == patterns[0]).all():
                shape = blocks.shape
                self._add_even(
                    rows[blocks[:, 0]], patterns[0], low.reshape(shape), high.reshape(shape), bad.reshape(shape)
                )
                return
        self._add_each(rows[codes], steps, low, high, bad)

    def _add_even(self, rows: Steps, steps: Steps, low: Values, high: Values, bad: Flags) -> None:
        """Add a block in which all rows have the same steps."""
        at = self.columns.of(steps)
        starts = np.flatnonzero(np.append(True, np.diff(at) != 0))
        wholes: list[Any] = [self.high, self.bad, *([self.low] if self.is_signed else [])]
        tables: list[tuple[Any, Any]] = [(np.fmax, high), (np.logical_or, bad), (np.fmin, low)][: len(wholes)]
        if len(starts) < len(at):
            tables = [(fold, fold.reduceat(table, starts, axis=1)) for fold, table in tables]
        order = np.argsort(rows, kind="stable")
        order = order[np.searchsorted(rows[order], 0) :]
        rows = rows[order]
        if not len(rows):
            return
        if not np.array_equal(order, np.arange(len(tables[0][1]))):
            tables = [(fold, table[order]) for fold, table in tables]
        firsts = np.flatnonzero(np.append(True, np.diff(rows) != 0))
        if len(firsts) < len(rows):
            tables = [(fold, fold.reduceat(table, firsts, axis=0)) for fold, table in tables]
        cells = np.ix_(rows[firsts], at[starts])
        for whole, (fold, table) in zip(wholes, tables, strict=True):
            whole[cells] = fold(whole[cells], table)
        self.has[cells] = True

    def _add_each(self, rows: Steps, steps: Steps, low: Values, high: Values, bad: Flags) -> None:
        inside = rows >= 0
        cells = rows[inside] * len(self.columns) + self.columns.of(steps[inside])
        if self.is_signed:
            np.fmin.at(self.low.reshape(-1), cells, low[inside])
        np.fmax.at(self.high.reshape(-1), cells, high[inside])
        self.bad.reshape(-1)[cells[bad[inside]]] = True
        self.has.reshape(-1)[cells] = True

    def fill(self, other: HeatTable) -> None:
        """Fill empty cells from another table of the same shape."""
        empty = ~self.has & other.has
        for name in ("low", "high", "bad", "has"):
            getattr(self, name)[empty] = getattr(other, name)[empty]
        self.counts = np.maximum(self.counts, other.counts)

    def largest(self) -> Values:
        """Return the value with the largest magnitude in each cell."""
        if not self.is_signed:
            return self.high
        return np.where(np.abs(self.low) > np.abs(self.high), self.low, self.high)
