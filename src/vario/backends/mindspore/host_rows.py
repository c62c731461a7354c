"""Summaries of arrays on the host: each block of an array is read once, while it is in the cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vario.backends.numpy.summaries import summarise
from vario.core.records import COLUMNS, COUNT, MAX, MIN, SUM, SUM_SQUARES, ZEROS, Table

_BLOCK = 1 << 16
"""Elements read at a time."""
_ROW = 256
_FAST = frozenset({"float32", "float64"})
_EXTREMES = ("min", "max")


def host_row(array: npt.NDArray[Any], eps: float, columns: frozenset[str]) -> Table:
    """Return the Summary of an array. NaN and Inf are always counted; other columns if they are wanted."""
    if array.dtype.name not in _FAST:
        return summarise(array, eps)
    values = array.reshape(-1)
    row = np.zeros(len(COLUMNS))
    row[COUNT] = values.size
    lows, highs = [], []
    wants_extremes = not columns.isdisjoint(_EXTREMES)
    counts_zeros = "zeros" in columns
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, values.size, _BLOCK):
            block = values[start : start + _BLOCK]
            row[SUM_SQUARES] += _sum_squares(block)
            row[SUM] += block.sum()
            if wants_extremes:
                lows.append(block.min())
                highs.append(block.max())
            if counts_zeros:
                row[ZEROS] += _num_zeros(block, eps)
    if not np.isfinite(row[SUM_SQUARES]):
        return summarise(array, eps)  # exact, and it tells an overflow of the sum from an Inf in the array
    row[MIN], row[MAX] = (min(lows), max(highs)) if wants_extremes else (np.nan, np.nan)
    return row


def _sum_squares(block: npt.NDArray[Any]) -> float:
    """Return the sum of squares; in short rows, so that float32 is exact enough, and without BLAS and its threads."""
    whole = block.size // _ROW * _ROW
    rows, rest = block[:whole].reshape(-1, _ROW), block[whole:]
    return float(np.einsum("ij,ij->i", rows, rows).sum(dtype=np.float64)) + float(np.einsum("i,i->", rest, rest))


def _num_zeros(block: npt.NDArray[Any], eps: float) -> int:
    if not eps:
        return block.size - int(np.count_nonzero(block))
    return int(np.count_nonzero(np.abs(block) < eps))
