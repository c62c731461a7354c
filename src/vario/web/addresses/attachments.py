"""Endpoints for the figures and tables beside a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vario.web import bodies
from vario.web.addresses.charts import MOST_STEP
from vario.web.addresses.overview import RUN
from vario.web.api.answers import PNG, Answer, Endpoint
from vario.web.api.parameters import Parameter
from vario.web.served import Served

NAME = Parameter("name", "The name it was logged with.", is_required=True)
STEP = Parameter("step", "The step it was logged at (default: the latest).", "whole", low=0, high=MOST_STEP)
RANK = Parameter("rank", "The rank that logged it (default: any).", "whole", low=0, high=10**6)


def attachments(served: Served, values: Mapping[str, Any]) -> bodies.Attachments:
    """Return what is kept beside a run, by step."""
    found = served.open(values["run"]).attachments
    return {"attachments": [{**one.to_json(), "rank": one.rank} for one in found]}  # type: ignore[typeddict-item]


def figure(served: Served, values: Mapping[str, Any]) -> Answer:
    """Return the PNG of a figure."""
    run = served.open(values["run"])
    return Answer(run.figure(values["name"], values["step"], values["rank"]), PNG)


def attached_table(served: Served, values: Mapping[str, Any]) -> bodies.AttachedTable:
    """Return a table that is kept beside a run."""
    found = served.open(values["run"]).table(values["name"], values["step"], values["rank"])
    return {"columns": found.columns, "rows": found.rows, "num_rows": found.num_rows}


ENDPOINTS = (
    Endpoint(
        "/api/attachments",
        "The figures and tables that were kept beside a run.",
        attachments,
        (RUN,),
        body=bodies.Attachments,
    ),
    Endpoint("/api/figure", "One of these figures.", figure, (RUN, NAME, STEP, RANK), media=(PNG,)),
    Endpoint(
        "/api/attached",
        "One of these tables.",
        attached_table,
        (RUN, NAME, STEP, RANK),
        body=bodies.AttachedTable,
    ),
)
