"""A quantity at a glance: all its targets over steps, as a table of the size of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vario.runs.files.rollups import settled
from vario.runs.files.row_files import Wanted
from vario.runs.reader import RunReader
from vario.runs.views.heat_table import Columns, HeatTable, distinct, even_columns, wide_columns
from vario.runs.views.merged_series import Steps, Values
from vario.runs.views.model_order import model_order
from vario.runs.views.name_search import matching
from vario.runs.views.rank_merging import folded_numbers, merged_numbers
from vario.runs.views.read_plan import choose_level, stretches_of
from vario.runs.views.rollup_reader import Cells
from vario.runs.views.view_source import Source, open_source

MOST_ROWS = 12e6
"""Rows of outlines that are read for one picture."""
MOST_FILES = 400


@dataclass(frozen=True)
class Heat:
    """A number for each target and stretch of steps."""

    quantity: str
    statistic: str
    rank: int | str
    targets: tuple[str, ...]
    """In model order; where a row stands for several, the first of them."""
    groups: tuple[int, ...]
    """How many targets each row stands for."""
    first: npt.NDArray[np.int64]
    """The first step of each column."""
    last: npt.NDArray[np.int64]
    """The last one, which belongs to it."""
    values: npt.NDArray[np.float32]
    """Rows x columns: what is largest in magnitude; NaN where nothing is finite. What is finite stays so: beyond what
    float32 can say, it is the largest that it can."""
    bad: npt.NDArray[np.uint8]
    """1 where a NaN or Inf was counted."""
    has: npt.NDArray[np.uint8]
    """1 where anything was recorded."""
    is_outline: bool
    """Whether it was made from outlines: a shorter range may show more."""


def read_heat(
    run: RunReader,
    quantity: str,
    statistic: str = "",
    rank: int | str = "all",
    first: int | None = None,
    last: int | None = None,
    rows: int = 800,
    columns: int = 1000,
    search: str = "",
) -> Heat:
    """All targets of a quantity over the steps of a range, in at most so many rows and columns.

    With a `search`, only those whose names have its words.

    `rank` is a number, "all" for what all ranks hold together, or what to make of the number of each: "min", "mean",
    "max" or "spread". A long run is read from its outlines: no NaN and no extreme is lost, only when within a column
    they were.
    """
    return settled(lambda: _read(run, quantity, statistic, rank, Wanted(None, first, last), rows, columns, search))


def _read(
    run: RunReader, quantity: str, statistic: str, rank: int | str, wanted: Wanted, rows: int, columns: int, search: str
) -> Heat:
    source = open_source(run, quantity, statistic, rank, wanted)
    names = matching(model_order(run, quantity, source.targets()), search)
    bounds = np.linspace(0, len(names), min(len(names), max(1, rows)) + 1).astype(np.int64)
    level = choose_level(source.views, source.wanted, columns, MOST_ROWS, MOST_FILES)
    fill = _from_rows if level == 0 else _from_outlines
    found = fill(source, names, bounds, columns, level)
    return Heat(
        quantity,
        source.statistic,
        rank,
        tuple(names[at] for at in bounds[:-1]),
        tuple(int(size) for size in np.diff(bounds)),
        found.columns.first,
        found.columns.last,
        _in_float32(found.largest()),
        found.bad.astype(np.uint8),
        found.has.astype(np.uint8),
        level > 0,
    )


def _in_float32(values: Values) -> npt.NDArray[np.float32]:
    most = np.finfo(np.float32).max
    return np.clip(values, -most, most).astype(np.float32)


def _from_rows(source: Source, names: Sequence[str], bounds: Steps, limit: int, level: int) -> HeatTable:
    chunks = list(source.points())
    steps = distinct(np.concatenate([np.zeros(0, np.int64), *(distinct(points.steps) for points in chunks)]))
    table = HeatTable(len(bounds) - 1, even_columns(np.stack([steps, steps], axis=1), limit), source.is_signed)
    place = _places(names, bounds)
    for points in chunks:
        row_of = np.array([place.get(name, -1) for name in points.names], np.int64)
        values = np.where(np.isfinite(points.values), points.values, np.nan)
        table.add(row_of, points.codes, points.steps, values, values, points.bad)
    return table


def _from_outlines(source: Source, names: Sequence[str], bounds: Steps, limit: int, level: int) -> HeatTable:
    """Each rank by itself, then what they come to together."""
    cells = {view.rank: Cells(source, view, level) for view in source.views}
    columns = _columns(list(cells.values()), source.wanted, limit)
    if len(cells) == 1:
        (only,) = cells.values()
        table = HeatTable(len(bounds) - 1, columns, source.is_signed)
        only.add_to(table, _places(names, bounds))
        return table
    each = _places(names, np.arange(len(names) + 1))
    tables: dict[int, HeatTable] = {}
    for rank, found in cells.items():
        groups = source.groups(names, rank)
        for group in np.unique(groups[groups >= 0]).tolist():
            table = HeatTable(len(names), columns, source.is_signed)
            found.add_to(table, {name: each[name] for name, own in zip(names, groups, strict=True) if own == group})
            if group in tables:
                tables[group].fill(table)
            else:
                tables[group] = table
    return _fewer_rows(_merged(source, list(tables.values())), bounds)


def _merged(source: Source, tables: Sequence[HeatTable]) -> HeatTable:
    """The tables of several ranks as one."""
    whole = HeatTable(len(tables[0].low), tables[0].columns, source.is_signed)
    if source.fold is not None:
        whole.low = whole.high = folded_numbers(source.fold, [table.largest() for table in tables])
    else:
        # Plain numbers have no elements: all count the same.
        counts = [np.broadcast_to(np.maximum(table.counts, 1), table.low.shape) for table in tables]
        whole.low = merged_numbers(source.statistic, [table.low for table in tables], counts)
        whole.high = merged_numbers(source.statistic, [table.high for table in tables], counts)
    whole.bad = np.logical_or.reduce([table.bad for table in tables])
    whole.has = np.logical_or.reduce([table.has for table in tables])
    return whole


def _columns(cells: Sequence[Cells], wanted: Wanted, limit: int) -> Columns:
    stretches = next((found for one in cells if len(found := stretches_of(one.plan.files, wanted))), None)
    spans = np.zeros((0, 2), np.int64) if stretches is None else stretches
    width = int((spans[:, 1] - spans[:, 0]).max()) + 1 if len(spans) else 1
    steps = distinct(np.concatenate([np.zeros(0, np.int64), *(one.raw_steps() for one in cells)]))
    spans = np.concatenate([spans, np.stack([steps, steps], axis=1)])
    return wide_columns(spans[np.argsort(spans[:, 1], kind="stable")], width, limit)


def _places(names: Sequence[str], bounds: Steps) -> dict[str, int]:
    """The row of each name."""
    rows = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    return dict(zip(names, rows.tolist(), strict=True))


def _fewer_rows(table: HeatTable, bounds: Steps) -> HeatTable:
    if len(bounds) - 1 == len(table.low):
        return table
    fewer = HeatTable(len(bounds) - 1, table.columns, table.is_signed)
    fewer.low = np.fmin.reduceat(table.low, bounds[:-1], axis=0)
    fewer.high = np.fmax.reduceat(table.high, bounds[:-1], axis=0)
    fewer.bad = np.logical_or.reduceat(table.bad, bounds[:-1], axis=0)
    fewer.has = np.logical_or.reduceat(table.has, bounds[:-1], axis=0)
    return fewer
