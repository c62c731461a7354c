"""The heat map of a quantity: all its targets over steps, as a table of the size of a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vario.runs.files.listing_cache import listings_cached
from vario.runs.files.rollups import settled
from vario.runs.files.row_files import Wanted
from vario.runs.reader import RunReader
from vario.runs.views.heat_table import Columns, HeatTable, distinct, even_columns, wide_columns
from vario.runs.views.merged_series import Steps, Values, folded_numbers, merged_numbers
from vario.runs.views.model_order import model_order
from vario.runs.views.name_search import matching
from vario.runs.views.read_plan import buckets_of, choose_level
from vario.runs.views.rollup_reader import RankRollups
from vario.runs.views.row_kinds import MASK, row_kinds
from vario.runs.views.view_source import Source, open_source

MOST_ROWS = 12e6
"""Rows of rollups that are read for one picture."""
MOST_FILES = 400


@dataclass(frozen=True)
class Heat:
    """A number for each target and bucket of steps."""

    quantity: str
    statistic: str
    rank: int | str
    targets: tuple[str, ...]
    """In model order; for a row with several targets, the first."""
    groups: tuple[int, ...]
    """How many targets each row represents."""
    first: npt.NDArray[np.int64]
    """The first step of each column."""
    last: npt.NDArray[np.int64]
    """The last step of each column, inclusive."""
    values: npt.NDArray[np.float32]
    """Rows x columns: what is largest in magnitude; NaN where nothing is finite. What is finite stays so: beyond what
    float32 can say, it is the largest that it can."""
    bad: npt.NDArray[np.uint8]
    """1 where there is a NaN or Inf."""
    has: npt.NDArray[np.uint8]
    """1 where anything was recorded."""
    is_rollup: bool
    """Whether it was made from rollups: a shorter range may show more."""
    kinds: tuple[str, ...] = ()
    """For each row `indices` or `mask` if its numbers are no sizes, else empty; none if all are sizes. A mask is `bad`
    only where it has NaN."""
    left_out: tuple[str, ...] = ()
    """Token ids and masks that share a row with sizes: of their numbers only NaN is in the row."""


@listings_cached()
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
    finds_kinds: bool = True,
) -> Heat:
    """Read all targets of a quantity over a range of steps, with at most this many rows and columns.

    With `search`, only targets whose names contain its words. `finds_kinds`: tell token ids and masks from sizes.

    `rank` is a number, "all" for what all ranks hold together, or what to make of the number of each: "min", "mean",
    "max" or "spread". A long run is read from its rollups: no NaN and no extreme is lost, only when within a column
    they were.
    """
    wanted = Wanted(None, first, last)
    return settled(lambda: _read(run, quantity, statistic, rank, wanted, rows, columns, search, finds_kinds))


def _read(
    run: RunReader,
    quantity: str,
    statistic: str,
    rank: int | str,
    wanted: Wanted,
    rows: int,
    columns: int,
    search: str,
    finds_kinds: bool,
) -> Heat:
    source = open_source(run, quantity, statistic, rank, wanted)
    names = matching(model_order(run, quantity, source.targets()), search)
    bounds = np.linspace(0, len(names), min(len(names), max(1, rows)) + 1).astype(np.int64)
    level = choose_level(source.views, source.wanted, columns, MOST_ROWS, MOST_FILES)
    shown, sizes = tuple(names[at] for at in bounds[:-1]), tuple(np.diff(bounds).tolist())
    if level == 0 and source.thinned_until() is not None:
        level = 1
    places = _places(names, bounds)
    known = row_kinds(run, quantity, names, rank) if finds_kinds else {}
    # A row has the kind of its targets only if none of them is a size.
    num_known = Counter(places[name] for name in known)
    has_kind = [num_known[row] == size for row, size in enumerate(sizes)]
    kinds = tuple(known[name] if is_one else "" for name, is_one in zip(shown, has_kind, strict=True)) if known else ()
    # How many NaN there are is of interest in any target.
    is_size = source.statistic != "nans"
    left_out = tuple(name for name in names if is_size and name in known and not has_kind[places[name]])
    fill = _from_rows if level == 0 else _from_rollups
    found = fill(source, names, bounds, columns, level, frozenset(left_out))
    if is_size and (masks := [name for name in names if known.get(name) == MASK]):
        # Masks contain -inf on purpose: they are bad only where they contain NaN.
        rows_of = np.array([places[name] for name in masks], np.int64)
        found.bad[[row for row in rows_of.tolist() if has_kind[row]]] = False
        nans = open_source(run, quantity, "nans", rank, wanted)
        counts = fill(nans, masks, np.arange(len(masks) + 1), columns, level, frozenset())
        at, when = np.nonzero(counts.high > 0)
        found.bad[rows_of[at], found.columns.of(counts.columns.last[when])] = True
    return Heat(
        quantity,
        source.statistic,
        rank,
        shown,
        sizes,
        found.columns.first,
        found.columns.last,
        _in_float32(found.largest()),
        found.bad.astype(np.uint8),
        found.has.astype(np.uint8),
        level > 0,
        kinds,
        left_out,
    )


def _in_float32(values: Values) -> npt.NDArray[np.float32]:
    most = np.finfo(np.float32).max
    return np.clip(values, -most, most).astype(np.float32)


def _from_rows(
    source: Source, names: Sequence[str], bounds: Steps, limit: int, level: int, left_out: Set[str]
) -> HeatTable:
    chunks = list(source.points())
    steps = distinct(np.concatenate([np.zeros(0, np.int64), *(distinct(points.steps) for points in chunks)]))
    table = HeatTable(len(bounds) - 1, even_columns(np.stack([steps, steps], axis=1), limit), source.is_signed)
    place = _places(names, bounds, left_out)
    for points in chunks:
        row_of = np.array([place.get(name, -1) for name in points.names], np.int64)
        values = np.where(np.isfinite(points.values), points.values, np.nan)
        table.add(row_of, points.codes, points.steps, values, values, points.bad)
    return table


def _from_rollups(
    source: Source, names: Sequence[str], bounds: Steps, limit: int, level: int, left_out: Set[str]
) -> HeatTable:
    """Each rank by itself, then what they come to together."""
    rollups = {view.rank: RankRollups(source, view, level) for view in source.views}
    columns = _columns(list(rollups.values()), source.wanted, limit)
    if len(rollups) == 1:
        (only,) = rollups.values()
        table = HeatTable(len(bounds) - 1, columns, source.is_signed)
        only.add_to(table, _places(names, bounds, left_out))
        return table
    each = _places(names, np.arange(len(names) + 1), left_out)
    tables: dict[int, HeatTable] = {}
    for rank, found in rollups.items():
        groups = source.groups(names, rank)
        for group in np.unique(groups[groups >= 0]).tolist():
            table = HeatTable(len(names), columns, source.is_signed)
            own = {name for name, one in zip(names, groups, strict=True) if one == group}
            found.add_to(table, {name: row for name, row in each.items() if name in own})
            if group in tables:
                tables[group].fill(table)
            else:
                tables[group] = table
    return _fewer_rows(_merged(source, list(tables.values())), bounds)


def _merged(source: Source, tables: Sequence[HeatTable]) -> HeatTable:
    """Merge the tables of several ranks."""
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


def _columns(rollups: Sequence[RankRollups], wanted: Wanted, limit: int) -> Columns:
    buckets = next((found for one in rollups if len(found := buckets_of(one.plan.files, wanted))), None)
    spans = np.zeros((0, 2), np.int64) if buckets is None else buckets
    width = int((spans[:, 1] - spans[:, 0]).max()) + 1 if len(spans) else 1
    steps = distinct(np.concatenate([np.zeros(0, np.int64), *(one.raw_steps() for one in rollups)]))
    spans = np.concatenate([spans, np.stack([steps, steps], axis=1)])
    return wide_columns(spans[np.argsort(spans[:, 1], kind="stable")], width, limit)


def _places(names: Sequence[str], bounds: Steps, left_out: Set[str] = frozenset()) -> dict[str, int]:
    """The row of each name, without those that are left out."""
    rows = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    return {name: row for name, row in zip(names, rows.tolist(), strict=True) if name not in left_out}


def _fewer_rows(table: HeatTable, bounds: Steps) -> HeatTable:
    if len(bounds) - 1 == len(table.low):
        return table
    fewer = HeatTable(len(bounds) - 1, table.columns, table.is_signed)
    fewer.low = np.fmin.reduceat(table.low, bounds[:-1], axis=0)
    fewer.high = np.fmax.reduceat(table.high, bounds[:-1], axis=0)
    fewer.bad = np.logical_or.reduceat(table.bad, bounds[:-1], axis=0)
    fewer.has = np.logical_or.reduceat(table.has, bounds[:-1], axis=0)
    return fewer
