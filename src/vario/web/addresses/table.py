"""Endpoints for many runs: a table of them, and the columns it can have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vario.runs.table.columns import FIGURES, Columns
from vario.runs.table.table import check_sort, make_table
from vario.web import bodies
from vario.web.addresses.overview import rows_of
from vario.web.api.answers import Endpoint
from vario.web.api.parameters import Parameter
from vario.web.served import Served

WHERE = Parameter("where", "Only these runs, for example `lr > 0.001 and state = finished`.", default="")
SORT = Parameter("sort", "Columns to sort by, separated by commas; `A desc` or `-A`: the highest first.", default="")


def table(served: Served, values: Mapping[str, Any]) -> bodies.RunTable:
    """Return runs as rows."""
    summaries, num_unread = rows_of(served).summaries()
    found = make_table(summaries, values["column"], values["where"], check_sort(values["sort"]), values["group"])
    extremes = [found.extremes(at) for at in range(len(found.columns))]
    return {
        "columns": [
            {
                "key": column.key,
                "title": column.title,
                "kind": column.kind,
                "source": column.source,
                "low": low,
                "high": high,
                "is_better_higher": column.is_better_higher,
            }
            for column, (low, high) in zip(found.columns, extremes, strict=True)
        ],
        "rows": [{"run": row.run, "group": row.group, "values": row.values} for row in found.rows],
        "groups": [
            {"value": each.value, "runs": each.runs, "means": each.means, "lows": each.lows, "highs": each.highs}
            for each in found.groups
        ],
        "total": found.total,
        "num_unread": num_unread,
    }


def columns(served: Served, values: Mapping[str, Any]) -> bodies.KnownColumns:
    """Return all columns that can be chosen."""
    summaries, _ = rows_of(served).summaries()
    return {
        "columns": [
            {"key": each.key, "kind": each.kind, "source": each.source, "differs": each.differs}
            for each in Columns(summaries).known()
        ],
        "figures": FIGURES,
    }


ENDPOINTS = (
    Endpoint(
        "/api/table",
        "Runs as rows: any of their facts, hyper-parameters and logged numbers; filtered, sorted, grouped.",
        table,
        (
            Parameter(
                "column",
                "A column: `duration`, `lr`, `val_loss:best`, ...; repeatable. /api/columns lists them.",
                is_repeated=True,
                most=64,
            ),
            WHERE,
            SORT,
            Parameter("group", "A column whose equal values make a group.", default=""),
        ),
        body=bodies.RunTable,
        is_cached=False,
    ),
    Endpoint(
        "/api/columns", "The columns that /api/table can have.", columns, body=bodies.KnownColumns, is_cached=False
    ),
)
