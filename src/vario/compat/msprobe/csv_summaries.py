"""Summaries from msprobe's numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vario.compat.msprobe.csv_rows import StepRows
from vario.core.records import COUNT, INFS, MAX, MIN, NANS, SUM, SUM_SQUARES, ZEROS, Table, empty_table

STATISTICS = ("norm", "min", "max", "mean", "zeros", "nans")


def summaries(rows: StepRows) -> tuple[Table, npt.NDArray[np.bool_]]:
    """Return a Summary of each row, and whether there was a tensor at all."""
    norm, low, high, mean, zeros, nans = rows.values(STATISTICS).T
    counts = _counts(rows)
    table = empty_table(len(norm))
    table[:, COUNT] = counts
    with np.errstate(all="ignore"):
        table[:, SUM] = mean * counts
        table[:, SUM_SQUARES] = np.square(norm)
        table[:, ZEROS] = np.round(zeros * counts)
    table[:, MIN], table[:, MAX] = low, high
    # msprobe does not count infinities, but they show in the extremes or the norm: this is the least number.
    table[:, INFS] = np.maximum(np.isinf(low).astype(float) + np.isinf(high), np.isinf(norm))
    # If NaN were not counted, any other number that is NaN means at least one; an empty tensor has no minimum. A column
    # that a file does not have says nothing.
    is_known = rows.known(STATISTICS)
    is_nan = (np.isnan(rows.values(STATISTICS)) & is_known).any(axis=1) & (counts != 0)
    table[:, NANS] = np.where(np.isnan(nans), is_nan, nans)
    # A missing tensor (an input without a gradient) has `nan` in every column.
    cannot_be_told = ~rows.known(["shape", "nans"]).any(axis=1)
    return table, np.isfinite(counts) | ~np.isnan(nans) | cannot_be_told


def number_summaries(rows: StepRows, columns: Sequence[str]) -> tuple[Table, npt.NDArray[np.bool_]]:
    """Return a Summary of each plain number, row by row, and whether the file has it."""
    values = rows.values(columns).reshape(-1)
    table = empty_table(len(values))
    table[:, COUNT] = 1
    for column in (SUM, MIN, MAX):
        table[:, column] = values
    table[:, SUM_SQUARES] = np.square(values)
    table[:, NANS] = np.isnan(values)
    table[:, INFS] = np.isinf(values)
    table[:, ZEROS] = values == 0
    return table, rows.known(columns).reshape(-1)


def shape_of(text: str | None) -> list[int] | None:
    """Parse the numbers in `[4, 8]` or `(4, 8)`; None for anything else."""
    if text is None or not re.fullmatch(r"[\[(][\d, ]*[\])]", text):
        return None
    return [int(number) for number in re.findall(r"\d+", text)]


def _counts(rows: StepRows) -> npt.NDArray[np.float64]:
    if "shape" not in rows.rows.column_names:
        return np.full(rows.rows.num_rows, np.nan)
    shapes = rows.rows.column("shape").combine_chunks().dictionary_encode()
    sizes = [_count(text) for text in shapes.dictionary.to_pylist()]
    indices = shapes.indices.fill_null(len(sizes)).to_numpy()
    counts: npt.NDArray[np.float64] = np.array([*sizes, np.nan])[indices]
    return counts


def _count(text: str | None) -> float:
    shape = shape_of(text)
    return math.nan if shape is None else float(math.prod(shape))
