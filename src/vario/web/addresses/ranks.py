"""The endpoint that compares ranks: their states, any statistic of each, the verdict about them, and which differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vario.core.errors import ConfigError
from vario.runs.findings.desync import Desync, first_desync
from vario.runs.findings.rank_verdict import rank_verdict
from vario.runs.run import Run
from vario.runs.views.curves import Curve, read_curve
from vario.runs.views.status.quantity_size import rows_bytes
from vario.web import bodies
from vario.web.addresses.charts import FIRST, LAST, POINTS, STATISTIC, described_curve
from vario.web.addresses.overview import RUN
from vario.web.api.answers import FRESH_SECONDS, Endpoint
from vario.web.api.parameters import Parameter
from vario.web.served import Served

MOST_CURVES = 64
CHECKSUM_BYTES = 128 << 20
"""The most bytes of checksums to read; beyond that, use `vario report`."""


def ranks(served: Served, values: Mapping[str, Any]) -> bodies.Ranks:
    """Return all ranks of a run, compared."""
    run = served.open(values["run"])
    desync = first_desync(run) if rows_bytes(run, "checksum") <= CHECKSUM_BYTES else None
    return {
        "ranks": run.rank_states,
        "world_size": run.world_size,
        "curves": [described_curve(curve) for curve in _curves(run, values)],
        "verdict": rank_verdict(run, run.alerts),
        "desync": None if desync is None else _described_desync(desync),
    }


def _described_desync(found: Desync) -> bodies.Desync:
    return {
        "step": found.step,
        "target": found.target,
        "quantity": found.quantity,
        "checksums": found.checksums,
        "ranks": found.ranks,
    }


def _curves(run: Run, values: Mapping[str, Any]) -> list[Curve]:
    quantity, target, statistic = values["quantity"], values["target"], values["statistic"]
    asked = (values["first"], values["last"], values["points"])
    if not run.ranks:
        return []
    found = []
    for rank in run.ranks[:MOST_CURVES]:
        try:
            found.append(read_curve(run, target, quantity, statistic, rank, *asked))
        except ConfigError:
            continue  # this rank does not have it; checked below whether any has
    if not found and (quantity, target) != ("scalar", "step_seconds"):
        read_curve(run, target, quantity, statistic, run.ranks[0], *asked)
    return found


ENDPOINTS = (
    Endpoint(
        "/api/ranks",
        "All ranks: their states, a curve of each, which is slow, and the first difference between replicas.",
        ranks,
        (
            RUN,
            Parameter("quantity", "The quantity of the curves.", default="scalar"),
            Parameter("target", "The target of the curves.", default="step_seconds"),
            STATISTIC,
            FIRST,
            LAST,
            POINTS,
        ),
        body=bodies.Ranks,
        fresh_seconds=FRESH_SECONDS,
    ),
)
