"""The endpoint that compares ranks: their states, any statistic of each, which is slow, and which differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vario.core.errors import ConfigError
from vario.runs.findings.desync import Desync, first_desync
from vario.runs.run import Run
from vario.runs.views.curves import Curve, read_curve
from vario.runs.views.quantity_size import rows_bytes
from vario.web import bodies
from vario.web.answers import FRESH_SECONDS, Endpoint
from vario.web.charts import FIRST, LAST, POINTS, STATISTIC, described_curve
from vario.web.overview import RUN
from vario.web.parameters import Parameter
from vario.web.served import Served

MOST_CURVES = 64
CHECKSUM_BYTES = 128 << 20
"""The most bytes of checksums to read; beyond that, use `vario report`."""
LEAST_SHARE = 0.05
"""A rank is slow if it takes this much longer than most for a part of a step, and this share of a step."""
OWN_PARTS = ("forward_seconds", "backward_seconds", "update_seconds", "wait_seconds")
"""The parts of a step that a rank does alone."""


def ranks(served: Served, values: Mapping[str, Any]) -> bodies.Ranks:
    """Return all ranks of a run, compared."""
    run = served.open(values["run"])
    desync = first_desync(run) if rows_bytes(run, "checksum") <= CHECKSUM_BYTES else None
    return {
        "ranks": run.rank_states,
        "world_size": run.world_size,
        "curves": [described_curve(curve) for curve in _curves(run, values)],
        "slowest": find_slowest(run),
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


def find_slowest(run: Run) -> bodies.Slowest | None:
    """Return the rank whose own work takes longest, if it clearly exceeds the others'.

    Ranks wait for each other, so the step time is the same on all of them, but the time until they wait is not. Names
    the part of a step in which the rank loses most.
    """
    if len(run.ranks) < 2:
        return None
    times = {name: _medians(run, name) for name in (*OWN_PARTS, "step_seconds")}
    whole = float(np.median(list(times["step_seconds"].values()) or [0.0]))
    found = [slow for name in OWN_PARTS if (slow := _slowest_in(run, name, times[name])) is not None]
    worst = max(found, key=lambda slow: slow.seconds - slow.usual_seconds, default=None)
    if worst is not None and worst.seconds - worst.usual_seconds > LEAST_SHARE * whole:
        return worst
    return (
        None
        if found or any(times[name] for name in OWN_PARTS)
        else _slowest_in(run, "step_seconds", times["step_seconds"])
    )


def _medians(run: Run, name: str) -> dict[int, float]:
    found = {}
    for rank in run.ranks:
        if "scalar" in run.quantities(rank) and name in run.targets("scalar", rank=rank):
            values = read_curve(run, name, "scalar", "value", rank, points=2000).last
            finite = values[np.isfinite(values)]
            if len(finite):
                found[rank] = float(np.median(finite))
    return found


def _slowest_in(run: Run, name: str, times: Mapping[int, float]) -> bodies.Slowest | None:
    if len(times) < 2:
        return None
    rank = max(times, key=lambda one: times[one])
    usual = float(np.median([seconds for other, seconds in times.items() if other != rank]))
    share = times[rank] / usual - 1 if usual > 0 else 0.0
    return (
        bodies.Slowest(rank, run.hosts.get(rank, ""), share, times[rank], usual, name) if share > LEAST_SHARE else None
    )


ENDPOINTS = (
    Endpoint(
        "/api/ranks",
        "All ranks: their states, a curve of each, the slowest, and the first difference between replicas.",
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
