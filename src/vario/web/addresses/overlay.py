"""The endpoint for charts over many runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vario.runs.notes.arrangement import MOST_CHARTS, Arrangement, read_arrangement
from vario.runs.reader import RunReader
from vario.runs.table.columns import Columns
from vario.runs.table.overlay import STEP, Overlay, read_overlay
from vario.runs.table.summary import RunSummary
from vario.runs.table.table import select
from vario.web import bodies
from vario.web.addresses.overview import rows_of
from vario.web.addresses.table import WHERE
from vario.web.api.answers import Endpoint
from vario.web.api.parameters import Parameter
from vario.web.served import Served
from vario.web.server.security import CHARTS_PATH

MOST_RUNS = 1000
GROUP = Parameter("group", "A column whose equal values make a group.", default="")
SOME_RUNS = Parameter(
    "run", "Only these runs; repeatable (default: all that the filter lets through).", is_repeated=True, most=MOST_RUNS
)


def selected(served: Served, values: Mapping[str, Any]) -> tuple[list[RunSummary], Columns]:
    """Return the runs that a request is about, and the columns of all runs."""
    summaries, _ = rows_of(served).summaries()
    columns = Columns(summaries)
    found = select(summaries, columns, values["where"])
    if values["run"]:
        wanted = set(values["run"])
        found = [run for run in found if run.run in wanted]
    return found, columns


def overlay(served: Served, values: Mapping[str, Any]) -> bodies.Overlays:
    """Return one chart for each number."""
    runs, columns = selected(served, values)
    by = columns.find(values["group"], "group") if values["group"] else None

    def opened(run: RunSummary) -> RunReader:
        return served.open(run.run)

    asked = (values["along"] or STEP, values["best"], by, values["points"])
    return {"charts": [_described(read_overlay(runs, opened, number, *asked)) for number in values["number"]]}


def stored_charts(served: Served, values: Mapping[str, Any]) -> bodies.StoredCharts:
    """Return the charts that were stored for the served folder."""
    found = read_arrangement(served.folder)
    return {"arrangement": None if found is None else described_arrangement(found)}


def described_arrangement(found: Arrangement) -> bodies.ChartArrangement:
    """Return an arrangement as fields of an answer."""
    return {
        "numbers": found.numbers,
        "draw": found.draw,
        "by": found.by,
        "along": found.along,
        "best": found.best,
        "log": found.log,
        "smooth": found.smooth,
    }


def _described(found: Overlay) -> bodies.OverlayChart:
    return {
        "number": found.number,
        "text": found.text,
        "lines": [
            {
                "label": line.label,
                "run": line.run,
                "num_runs": line.num_runs,
                "x": line.x,
                "low": line.low,
                "high": line.high,
                "value": line.value,
                "best": line.best,
            }
            for line in found.lines
        ],
    }


ENDPOINTS = (
    Endpoint(
        "/api/overlay",
        "Logged numbers of many runs: a line for each run; of many runs, and of groups, the mean and the range.",
        overlay,
        (
            Parameter("number", "A logged number; repeatable.", is_required=True, is_repeated=True, most=MOST_CHARTS),
            SOME_RUNS,
            WHERE,
            GROUP,
            Parameter("along", "step, time (since each run's start), or a logged number such as epoch.", default=STEP),
            Parameter("best", "1: each run's best value so far.", "switch", False),
            Parameter("points", "The most points per line.", "whole", 300, 2, 2000),
        ),
        body=bodies.Overlays,
        is_cached=False,
    ),
    Endpoint(
        CHARTS_PATH,
        "The charts that were stored for this folder of runs.",
        stored_charts,
        body=bodies.StoredCharts,
        is_cached=False,
    ),
)
