"""A table of runs, and what can be in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict


class TableColumn(TypedDict):
    """One column."""

    key: str
    title: str
    kind: str
    """number, text, seconds, time, bytes, share or state."""
    source: str
    """run, params or number."""
    low: float | None
    """The lowest number in it."""
    high: float | None
    is_better_higher: bool | None


class TableRow(TypedDict):
    """One run."""

    run: str
    group: str | None
    values: Sequence[Any]
    """A number, a text, true, false or null for each column."""


class TableGroup(TypedDict):
    """Runs that agree in the value they are grouped by."""

    value: str
    runs: int
    means: Sequence[float | None]
    """Of each column; null where it has no numbers."""
    lows: Sequence[float | None]
    highs: Sequence[float | None]


class KnownColumn(TypedDict):
    """A column that can be chosen."""

    key: str
    kind: str
    source: str
    differs: bool
    """Whether runs differ in it."""


class RunTable(TypedDict):
    """Runs as rows, filtered, sorted and grouped."""

    columns: list[TableColumn]
    rows: list[TableRow]
    groups: list[TableGroup]
    total: int
    """How many runs there are, filtered or not."""
    num_unread: int
    """How many could not be read in time, or at all."""


class KnownColumns(TypedDict):
    """All columns that can be chosen."""

    columns: list[KnownColumn]
    figures: Sequence[str]
    """What a logged number offers, as `val_loss:best`; the first is the default."""
