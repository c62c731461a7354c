"""Rollup rows: for each target and bucket of steps the minimum, maximum and last value of each statistic."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vario.core.records import COLUMNS, INFS, MAX, MIN, NANS, Table
from vario.core.run_files.columns import numpy_kind
from vario.statistics import STATISTICS
from vario.store.encoding import TARGET, arrow_column, arrow_strings, whole_array

Array = npt.NDArray[Any]
Steps = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

ADDED = ("points", "bad")
FIRST = ("first_step", "order")
"""Columns that keep the value of the first row; all others keep that of the last row."""


ROWS_AT_ONCE = 1 << 15


@dataclass(frozen=True)
class RollupRows:
    """Rows in the order of (target, step); `codes` index the sorted names."""

    names: list[str]
    codes: npt.NDArray[np.int32]
    columns: dict[str, Array]

    def __len__(self) -> int:
        return len(self.codes)

    def to_arrow(self, metadata: dict[bytes | str, bytes | str] | None = None) -> Any:
        """Return the rows as an Arrow table."""
        target = pa.DictionaryArray.from_arrays(arrow_column(self.codes), arrow_strings(self.names))
        arrays = [target, *(arrow_column(values) for values in self.columns.values())]
        fields = [
            pa.field("target", TARGET),
            *(pa.field(name, a.type) for name, a in zip(self.columns, arrays[1:], strict=True)),
        ]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=metadata))


def from_arrow(table: Any) -> RollupRows:
    """Read the rows of a file, or of some of its row groups."""
    table = table.unify_dictionaries().combine_chunks()
    target = table.column("target").combine_chunks()
    columns = {
        field.name: whole_array(table.column(field.name).combine_chunks(), numpy_kind(field.type))
        for field in table.schema
        if field.name != "target"
    }
    return RollupRows(target.dictionary.to_pylist(), whole_array(target.indices, np.int32), columns)


def measured(table: Any, bounds: Steps) -> RollupRows:
    """Build the rollup of a part's rows, in the order of (target, step); `bounds`: first step of each bucket."""
    target = table.column("target").chunk(0)
    codes = whole_array(target.indices, np.int32)
    # Some targets at a time: all at once would take several times the memory of the rows.
    starts = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))
    cuts = starts[np.searchsorted(starts, np.arange(0, len(codes), ROWS_AT_ONCE))] if len(starts) else starts
    cuts = np.unique(np.append(cuts, len(codes)))
    pieces = [_measured(table.slice(a, b - a), bounds) for a, b in itertools.pairwise(cuts)]
    return RollupRows(
        target.dictionary.to_pylist(),
        np.concatenate([found for found, _ in pieces]),
        {name: np.concatenate([columns[name] for _, columns in pieces]) for name in pieces[0][1]},
    )


def _measured(table: Any, bounds: Steps) -> tuple[npt.NDArray[np.int32], dict[str, Array]]:
    codes, steps = whole_array(table.column("target").chunk(0).indices, np.int32), _whole(table, "step", np.int64)
    # A step's micro-steps are one point, as in a series.
    points = _starts(codes, steps)
    codes, steps = codes[points], steps[points]
    starts = _starts(codes, np.searchsorted(bounds, steps, "right"))
    ends = np.append(starts[1:], len(steps)) - 1
    columns: dict[str, Array] = {"first_step": steps[starts], "last_step": steps[ends]}
    if "value" in table.column_names:
        values = numbers(table.column("value").chunk(0))
        columns["time"] = numbers(table.column("time").chunk(0))[points][ends]
        if len(points) < len(values):
            values = np.add.reduceat(values, points) / np.diff(np.append(points, len(values)))
        statistics: Iterator[tuple[str, Values]] = iter([("value", values)])
        bad = ~np.isfinite(values)
    else:
        columns["order"] = _whole(table, "order", np.int32)[points][starts]
        rows = _merged(table, points)
        bad = (rows[:, NANS] > 0) | (rows[:, INFS] > 0)
        # A statistic whose columns were not recorded is NaN throughout.
        statistics = ((name, STATISTICS.get(name)(rows)) for name in STATISTICS.names())
    columns["points"] = ends - starts + 1
    columns["bad"] = np.add.reduceat(bad, starts, dtype=np.int64)
    for name, values in statistics:
        finite = np.where(np.isfinite(values), values, np.nan)
        columns[f"{name}_low"] = np.fmin.reduceat(finite, starts)
        columns[f"{name}_high"] = np.fmax.reduceat(finite, starts)
        columns[f"{name}_last"] = values[ends]
        columns[f"{name}_mean"] = _rounded(_good_mean(np.where(bad, 0.0, values), ~bad, starts))
    return codes[starts], columns


def _good_mean(values: Values, is_good: Array, starts: Steps) -> Values:
    """Return the mean over the points without NaN and Inf; NaN where there is none."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.add.reduceat(values, starts)
        number = np.add.reduceat(is_good, starts, dtype=np.int64)
        mean: Values = np.divide(total, number, out=np.full(len(starts), np.nan), where=number > 0)
    return mean


def _rounded(values: Values) -> Values:
    """Round to the 24 bits of a float32, which compress to half; the exponent keeps its range."""
    bits = np.ascontiguousarray(values).view(np.uint64)
    rounded: Values = ((bits + np.uint64(1 << 28)) & ~np.uint64((1 << 29) - 1)).view(np.float64)
    return np.where(np.isfinite(values) & np.isfinite(rounded), rounded, values)


def folded(rows: RollupRows, bounds: Steps) -> RollupRows:
    """Fold rows into one per target and bucket; `bounds`: the first step of each bucket."""
    starts = _starts(rows.codes, np.searchsorted(bounds, rows.columns["first_step"], "right"))
    if len(starts) == len(rows):
        return rows
    ends = np.append(starts[1:], len(rows)) - 1
    columns = {name: _folded(name, values, starts, ends) for name, values in rows.columns.items()}
    good = (rows.columns["points"] - rows.columns["bad"]).astype(np.float64)
    for name, values in rows.columns.items():
        if name.endswith("_mean"):
            columns[name] = _weighted_mean(values, good, starts)
    return RollupRows(rows.names, rows.codes[starts], columns)


def _weighted_mean(means: Values, weights: Values, starts: Steps) -> Values:
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.add.reduceat(np.where(weights > 0, means * weights, 0.0), starts)
        weight = np.add.reduceat(weights, starts)
        return _rounded(np.divide(total, weight, out=np.full(len(starts), np.nan), where=weight > 0))


def together(pieces: Sequence[RollupRows]) -> RollupRows:
    """Merge the rows of several rollups, in the order of (target, step)."""
    names = pieces[0].names
    codes_of = [piece.codes for piece in pieces]
    if any(piece.names != names for piece in pieces[1:]):
        names = sorted({name for piece in pieces for name in piece.names})
        place = {name: at for at, name in enumerate(names)}
        codes_of = [np.array([place[name] for name in piece.names], np.int32)[piece.codes] for piece in pieces]
    codes = np.concatenate(codes_of)
    # A column that only some of them have is dropped: a statistic that an update of vario added.
    shared = [name for name in pieces[0].columns if all(name in piece.columns for piece in pieces)]
    columns = {name: np.concatenate([piece.columns[name] for piece in pieces]) for name in shared}
    order = np.lexsort((columns["first_step"], codes))
    return RollupRows(names, codes[order], {name: values[order] for name, values in columns.items()})


def numbers(column: Any) -> npt.NDArray[np.float64]:
    """Return the numbers of an Arrow array, NaN for null; without pandas, which `to_numpy` may import."""
    kind = np.int64 if pa.types.is_integer(column.type) else np.float64
    values = whole_array(column, kind).astype(np.float64)
    if column.null_count:
        bitmap = column.buffers()[0]
        if bitmap is None:
            return np.full(len(column), np.nan)
        known = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
        values[known[column.offset : column.offset + len(column)] == 0] = np.nan
    return values


def _starts(first: Array, second: Array) -> Steps:
    """Return where a new pair of numbers begins."""
    is_new = np.ones(len(first), np.bool_)
    is_new[1:] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    return np.flatnonzero(is_new)


def _folded(name: str, values: Array, starts: Steps, ends: Steps) -> Array:
    if name in ADDED:
        return np.asarray(np.add.reduceat(values, starts))
    if name.endswith("_low"):
        return np.asarray(np.fmin.reduceat(values, starts))
    if name.endswith("_high"):
        return np.asarray(np.fmax.reduceat(values, starts))
    return values[starts] if name in FIRST else values[ends]


def _merged(table: Any, starts: Steps) -> Table:
    rows = np.empty((len(starts), len(COLUMNS)), order="F")
    for at, name in enumerate(COLUMNS):
        values = numbers(table.column(name).chunk(0))
        if len(starts) < len(values):
            fold = np.fmin if at == MIN else np.fmax if at == MAX else np.add
            with np.errstate(invalid="ignore"):
                values = fold.reduceat(values, starts)
        rows[:, at] = values
    return rows


def _whole(table: Any, name: str, kind: type[np.generic]) -> Array:
    return whole_array(table.column(name).chunk(0), kind)
