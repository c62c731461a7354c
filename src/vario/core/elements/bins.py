"""The bins of a distribution, and how rows store them.

A distribution counts elements by sign and magnitude. Magnitudes fall into *cells*: one for each power of two from 2^-64
to 2^64, one below and one above. Three cells are split at the largest finite values of fp8 and fp16, which are no
powers of two; such a value itself belongs to the lower part. Zero, NaN and both Infs have bins of their own. Counts are
whole numbers, so distributions of parts of a tensor add up exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
"""Distributions, one row each, with `NUM_BINS` columns."""

LOWEST, HIGHEST = -64, 64
"""Exponents: magnitudes below 2^LOWEST share a cell, and so do those from 2^HIGHEST on."""
SPLITS = (448.0, 57_344.0, 65_504.0)
"""The largest finite values of fp8 e4m3, fp8 e5m2 and fp16."""

ZERO, NAN, MINUS_INF, PLUS_INF = range(4)
FIRST_CELL = 4
"""The bin of negative elements of the first cell; positive ones are in the next bin."""

NUM_CELLS = HIGHEST - LOWEST + 2 + len(SPLITS)
NUM_BINS = FIRST_CELL + 2 * NUM_CELLS
MOST_BYTES = 10 * (NUM_BINS + 1)
"""No stored distribution is longer."""

QUANTITY = "distribution"
"""The quantity whose schedule says which steps record distributions."""
COUNTED = ("gradient", "weight", "moment", "activation", "activation_gradient", "update")
"""Quantities whose rows get distributions in these steps."""
DETAIL = "detail"
"""The column of rows that have more than a Summary."""


def _edges() -> tuple[float, ...]:
    powers = [float(2.0**exponent) for exponent in range(LOWEST, HIGHEST + 1)]
    return tuple(sorted([0.0, *powers, *SPLITS, float("inf")]))


EDGES = np.array(_edges())
"""Cell i has magnitudes from EDGES[i] to EDGES[i + 1]."""
IS_SPLIT = np.isin(EDGES, SPLITS)
"""Edges that belong to the cell below them; any other belongs to the cell above."""


def bin_ends() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the lowest and the highest number of each bin; those of negative elements are negative."""
    low, high = np.zeros(NUM_BINS), np.zeros(NUM_BINS)
    low[NAN] = high[NAN] = np.nan
    low[MINUS_INF] = high[MINUS_INF] = -np.inf
    low[PLUS_INF] = high[PLUS_INF] = np.inf
    low[FIRST_CELL::2], high[FIRST_CELL::2] = -EDGES[1:], -EDGES[:-1]
    low[FIRST_CELL + 1 :: 2], high[FIRST_CELL + 1 :: 2] = EDGES[:-1], EDGES[1:]
    return low, high


def by_cell(counts: Counts) -> Counts:
    """Return how many elements each cell has, negative and positive ones together, without zeros and Inf."""
    return counts[..., FIRST_CELL::2] + counts[..., FIRST_CELL + 1 :: 2]


def encode(counts: Counts) -> list[bytes]:
    """Return each row as bytes: variable-length numbers, and of the cells only the range that has any elements.

    They are the counts of zero, NaN, -Inf and +Inf, the first occupied bin, and the counts from there on.
    """
    if not len(counts):
        return []
    cells = counts[:, FIRST_CELL:]
    occupied = cells != 0
    has_any = occupied.any(axis=1)
    first = np.where(has_any, occupied.argmax(axis=1), 0)
    last = np.where(has_any, cells.shape[1] - occupied[:, ::-1].argmax(axis=1), 0)
    columns = np.arange(cells.shape[1])
    inside = (columns >= first[:, None]) & (columns < last[:, None])
    values = np.concatenate([counts[:, :FIRST_CELL], first[:, None], cells], axis=1)
    kept = np.concatenate([np.ones((len(counts), FIRST_CELL + 1), np.bool_), inside], axis=1)
    numbers = values[kept].astype(np.uint64)
    packed, lengths = _varints(numbers)
    ends = np.cumsum(lengths)[np.cumsum(kept.sum(axis=1)) - 1]
    return [packed[start:end].tobytes() for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)]


def _varints(numbers: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return numbers as varints end to end, and the length of each."""
    lengths = np.ones(len(numbers), np.int64)
    rest = numbers >> np.uint64(7)
    while rest.any():
        lengths += rest > 0
        rest = rest >> np.uint64(7)
    places = np.arange(int(lengths.max(initial=1)))
    digits = (numbers[:, None] >> (7 * places).astype(np.uint64)) & np.uint64(0x7F)
    digits |= np.where(places < lengths[:, None] - 1, 0x80, 0).astype(np.uint64)
    return digits.astype(np.uint8)[places < lengths[:, None]], lengths


def decode(rows: Sequence[bytes]) -> Counts:
    """Return the distributions of some rows; raises ValueError for bytes that are none."""
    counts = np.zeros((len(rows), NUM_BINS), np.int64)
    for at, row in enumerate(rows):
        numbers = _numbers(row)
        if len(numbers) <= FIRST_CELL:
            raise ValueError("a distribution ends too early")
        first = FIRST_CELL + int(numbers[FIRST_CELL])
        found = numbers[FIRST_CELL + 1 :]
        if first + len(found) > NUM_BINS:
            raise ValueError("a distribution has more bins than there are")
        counts[at, :FIRST_CELL] = numbers[:FIRST_CELL]
        counts[at, first : first + len(found)] = found
    return counts


def _numbers(row: bytes) -> npt.NDArray[np.int64]:
    raw = np.frombuffer(row, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if not len(raw) or len(raw) > MOST_BYTES or not len(ends) or ends[-1] != len(raw) - 1:
        raise ValueError("a distribution is cut off")
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    # Nine bytes have 63 bits: no count is negative.
    if lengths.max() > 9:
        raise ValueError("a distribution has an impossible count")
    places = np.arange(len(raw)) - np.repeat(starts, lengths)
    return np.add.reduceat((raw & 0x7F).astype(np.int64) << (7 * places), starts)


def merge_bins(rows: Sequence[Any], groups: npt.NDArray[np.int64], num_groups: int) -> Counts:
    """Add up stored distributions by group number."""
    merged = np.zeros((num_groups, NUM_BINS), np.int64)
    np.add.at(merged, groups, decode(rows))
    return merged


class BinTable:
    """Distributions of rows of a step, by their number in it."""

    def __init__(self, counts: Mapping[int, Counts]) -> None:
        self._counts = counts

    def stored(self, rows: Sequence[int], groups: npt.NDArray[np.int64] | None = None) -> list[bytes] | None:
        """Return what is stored for rows: nothing where one has no distribution; None if none has any.

        With `groups`, a number for each row, rows of one group are added up.
        """
        known = [self._counts.get(row) for row in rows]
        if all(one is None for one in known):
            return None
        places = np.arange(len(rows)) if groups is None else groups
        num = int(places[-1]) + 1
        table = np.zeros((num, NUM_BINS), np.int64)
        is_whole = np.ones(num, np.bool_)
        for place, one in zip(places.tolist(), known, strict=True):
            if one is None:
                is_whole[place] = False
            else:
                table[place] += one
        stored = [b""] * num
        for place, row in zip(np.flatnonzero(is_whole).tolist(), encode(table[is_whole]), strict=True):
            stored[place] = row
        return stored
