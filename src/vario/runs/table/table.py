"""A table of runs: chosen columns, filtered, sorted and grouped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vario.core.errors import ConfigError
from vario.runs.table.columns import Column, Columns, Value, order_key
from vario.runs.table.filters import parse_filter
from vario.runs.table.summary import RunSummary

USUAL = ("state", "started", "duration", "step", "loss", "alerts")
"""The columns of a table for which none were chosen."""


@dataclass(frozen=True)
class Row:
    """One run and its values."""

    run: str
    name: str
    group: str | None
    """The value it is grouped by, as text."""
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Group:
    """Runs that agree in the value they are grouped by."""

    value: str
    runs: int
    means: tuple[float | None, ...]
    """Of each column; None where it has no numbers."""
    lows: tuple[float | None, ...]
    highs: tuple[float | None, ...]


@dataclass(frozen=True)
class Table:
    """Runs as rows."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    groups: tuple[Group, ...]
    total: int
    """How many runs there are, filtered or not."""

    def extremes(self, at: int) -> tuple[float | None, float | None]:
        """Return the lowest and highest number of a column."""
        found = _finite([row.values[at] for row in self.rows])
        return (min(found), max(found)) if found else (None, None)


def select(runs: Sequence[RunSummary], columns: Columns, where: str) -> list[RunSummary]:
    """Return the runs that a filter lets through."""
    test = parse_filter(where, columns)
    return [run for run in runs if test(run)]


def make_table(
    runs: Sequence[RunSummary], keys: Sequence[str], where: str = "", sort: Sequence[str] = (), group: str = ""
) -> Table:
    """Build a table; `sort` has column names, the most important first, with a minus for the highest first."""
    columns = Columns(runs)
    chosen = [columns.find(key) for key in keys]
    kept = select(runs, columns, where)
    for key in reversed(sort):
        is_falling = key.startswith("-")
        kept = sort_runs(kept, columns.find(key.removeprefix("-"), "sort"), is_falling)
    by = columns.find(group, "group") if group else None
    rows = [
        Row(run.run, run.name, None if by is None else group_text(by.read(run)), tuple(c.read(run) for c in chosen))
        for run in kept
    ]
    groups = [] if by is None else _groups(rows, len(chosen), by, kept)
    if by is not None:
        places = {found.value: at for at, found in enumerate(groups)}
        rows.sort(key=lambda row: places[row.group or ""])
    return Table(tuple(chosen), tuple(rows), tuple(groups), len(runs))


def sort_runs(runs: Sequence[RunSummary], column: Column, is_falling: bool) -> list[RunSummary]:
    """Sort by a column; what is missing or NaN comes last either way."""
    keyed = [(order_key(column.read(run)), run) for run in runs]
    known = sorted((each for each in keyed if each[0][0] < 2), key=lambda each: each[0], reverse=is_falling)
    return [run for _, run in [*known, *(each for each in keyed if each[0][0] >= 2)]]


def group_text(value: Value) -> str:
    """Return the name of the group of a value."""
    return "none" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _groups(rows: Sequence[Row], num_columns: int, by: Column, runs: Sequence[RunSummary]) -> list[Group]:
    members: dict[str, list[Row]] = {}
    order: dict[str, tuple[int, float, str]] = {}
    for row, run in zip(rows, runs, strict=True):
        members.setdefault(row.group or "", []).append(row)
        order.setdefault(row.group or "", order_key(by.read(run)))
    found = []
    for value in sorted(members, key=order.__getitem__):
        numbers = [_finite([row.values[at] for row in members[value]]) for at in range(num_columns)]
        found.append(
            Group(
                value,
                len(members[value]),
                tuple(float(np.mean(each)) if each else None for each in numbers),
                tuple(min(each) if each else None for each in numbers),
                tuple(max(each) if each else None for each in numbers),
            )
        )
    return found


def _finite(values: Sequence[Value]) -> list[float]:
    numbers = [float(value) for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return [value for value in numbers if math.isfinite(value)]


def check_sort(text: str) -> list[str]:
    """Split a list of column names to sort by; `A desc` is `-A`."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    found = [f"-{word[:-5].strip()}" if word.endswith(" desc") else word.removesuffix(" asc") for word in found]
    if len(found) > 8:
        raise ConfigError(f"sort: {len(found)} columns; the limit is 8")
    return found


def rows_json(table: Table) -> list[dict[str, Any]]:
    """Return the rows of a table as JSON values."""
    keys = [column.key for column in table.columns]
    return [{"run": row.run, "name": row.name, **dict(zip(keys, row.values, strict=True))} for row in table.rows]
