"""Ranks beside each other: how each fares, any statistic of each, who is slow, and who differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vario.errors import ConfigError
from vario.runs.curves import Curve, read_curve
from vario.runs.desync import first_desync
from vario.runs.extent import rows_bytes
from vario.runs.run import Run
from vario.web.answers import FRESH_SECONDS, Endpoint
from vario.web.charts import FIRST, LAST, POINTS, STATISTIC, described_curve
from vario.web.overview import RUN
from vario.web.parameters import Parameter
from vario.web.served import Served

MOST_CURVES = 64
CHECKSUM_BYTES = 128 << 20
"""Of more checksums, `vario report` tells."""
LEAST_SHARE = 0.05
"""A rank that takes this much longer than most is slow."""


@dataclass(frozen=True)
class Slowest:
    """The rank that the others wait for."""

    rank: int
    host: str
    share: float
    """By how much of their time it is slower than the others, at the median."""
    seconds: float
    usual_seconds: float
    by: str
    """The plain number that tells."""


def ranks(served: Served, values: Mapping[str, Any]) -> dict[str, Any]:
    """All ranks of a run beside each other."""
    run = served.open(values["run"])
    desync = first_desync(run) if rows_bytes(run, "checksum") <= CHECKSUM_BYTES else None
    return {
        "ranks": run.rank_states,
        "world_size": run.world_size,
        "curves": [described_curve(curve) for curve in _curves(run, values)],
        "slowest": find_slowest(run),
        "desync": None if desync is None else {**vars(desync), "ranks": desync.ranks},
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
            continue  # this rank does not have it; whether any has is said below
    if not found and (quantity, target) != ("scalar", "step_seconds"):
        read_curve(run, target, quantity, statistic, run.ranks[0], *asked)
    return found


def find_slowest(run: Run) -> Slowest | None:
    """The rank whose own work takes longest, where it takes clearly longer than that of the others.

    Ranks wait for each other, so the time of a whole step is alike on all of them; the time until they wait is not.
    """
    if len(run.ranks) < 2:
        return None
    known = {rank: run.targets("scalar", rank=rank) if "scalar" in run.quantities(rank) else [] for rank in run.ranks}
    for name in ("forward_seconds", "step_seconds"):
        times = {}
        for rank in (rank for rank, names in known.items() if name in names):
            values = read_curve(run, name, "scalar", "value", rank, points=2000).last
            finite = values[np.isfinite(values)]
            if len(finite):
                times[rank] = float(np.median(finite))
        if len(times) < 2:
            continue
        rank = max(times, key=lambda one: times[one])
        usual = float(np.median([seconds for other, seconds in times.items() if other != rank]))
        share = times[rank] / usual - 1 if usual > 0 else 0.0
        if share > LEAST_SHARE:
            return Slowest(rank, run.hosts.get(rank, ""), share, times[rank], usual, name)
    return None


ENDPOINTS = (
    Endpoint(
        "/api/ranks",
        "All ranks: their states, a curve of each, the slowest, and the first difference of what should be alike.",
        ranks,
        (
            RUN,
            Parameter("quantity", "Of the curves.", default="scalar"),
            Parameter("target", "Of the curves.", default="step_seconds"),
            STATISTIC,
            FIRST,
            LAST,
            POINTS,
        ),
        fresh_seconds=FRESH_SECONDS,
    ),
)
