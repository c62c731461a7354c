"""Tools about curves: which there are, and the numbers of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vario.core.errors import ConfigError
from vario.core.quantities import LOSS, SCALAR
from vario.core.text import suggestion, unknown
from vario.runs.run import Run
from vario.runs.views.curves import Curve, read_curve
from vario.runs.views.name_search import matching
from vario.runs.views.status.losses import read_losses
from vario.web.addresses.charts import FIRST, LAST, RANK, SEARCH, STATISTIC, read_rank
from vario.web.addresses.run_parts import quantities_of
from vario.web.api.answers import Values
from vario.web.api.parameters import Parameter
from vario.web.mcp.tools import RUN, Tool, open_run
from vario.web.served import Served

MOST_POINTS = 500


def find_series(served: Served, values: Values) -> Mapping[str, Any]:
    """Return what was recorded, by quantity, and the targets that a search finds."""
    name, run = open_run(served, values)
    recorded = quantities_of(run)
    names = [quantity["name"] for quantity in recorded]
    if values["quantity"] and values["quantity"] not in names:
        raise ConfigError(unknown("quantity", values["quantity"], names))
    found = []
    room = values["limit"]
    for quantity in recorded:
        if values["quantity"] in (None, quantity["name"]):
            targets = matching(run.targets(quantity["name"]), values["search"])
            found.append({**quantity, "num_matching": len(targets), "targets": targets[:room]})
            room -= len(targets[:room])
    return {"run": name, "last_step": run.last_step, "quantities": found}


def read_series(served: Served, values: Values) -> Mapping[str, Any]:
    """Return one curve in at most so many points."""
    name, run = open_run(served, values)
    target, quantity = _series(run, values["target"], values["quantity"])
    asked = (values["statistic"], read_rank(values["rank"]), values["first"], values["last"], values["points"])
    curve = read_curve(run, target, quantity, *asked)
    return {"run": name, **_described(curve)}


def _series(run: Run, target: str, quantity: str | None) -> tuple[str, str]:
    """The target and the quantity to read; without one, the first that has this target."""
    recorded = run.quantities("all") if run.ranks else []
    if quantity is not None:
        if quantity not in recorded:
            raise ConfigError(unknown("quantity", quantity, recorded))
        return target, quantity
    for known in recorded:
        targets = run.targets(known)
        if target in targets or f"{target}:output" in targets:
            return target, known
    if target == LOSS and (losses := read_losses(run)):
        return losses[0].target, SCALAR
    raise ConfigError(f"target: no series '{target}'. {suggestion(target, run.targets() if recorded else [])}")


def _described(curve: Curve) -> dict[str, Any]:
    """A curve as columns, without those that say nothing new."""
    found: dict[str, Any] = {
        "quantity": curve.quantity,
        "target": curve.target,
        "statistic": curve.statistic,
        "rank": curve.rank,
        "is_every_step": curve.is_whole,
        "steps": curve.steps.tolist(),
        "values": curve.last.tolist(),
        "steps_with_nan_or_inf": curve.steps[curve.bad].tolist(),
    }
    if not curve.is_whole:
        found |= {"low": curve.low.tolist(), "high": curve.high.tolist()}
    finite = np.concatenate([curve.low, curve.high])
    finite = finite[np.isfinite(finite)]
    found["lowest"], found["highest"] = (float(finite.min()), float(finite.max())) if len(finite) else (None, None)
    return found


TOOLS = (
    Tool(
        "find_series",
        "Find recorded series",
        "What was recorded in a run, by quantity: `scalar` (plain numbers such as loss, lr, step_seconds), gradient, "
        "weight, activation, update, moment, ...; with the statistics of each (norm, mean, rms, std, min, max, absmax, "
        "nans, infs, zeros) and the names of the targets (parameters, modules, numbers) that a search finds.",
        find_series,
        (
            RUN,
            SEARCH,
            Parameter("quantity", "Only this quantity, for example gradient or scalar."),
            Parameter("limit", "The most names to return, of all quantities together.", "whole", 100, 1, 500),
        ),
    ),
    Tool(
        "read_series",
        "Read one series",
        "The numbers of one series over steps, such as the loss or the gradient norm of a layer, downsampled to a "
        "number of points: `values` are those at `steps`; `low` and `high` are the extremes since the step before, so "
        "no spike is lost, and steps with NaN or Inf are listed. Name a range of steps to see each one.",
        read_series,
        (
            RUN,
            Parameter(
                "target", "The name, as `find_series` lists it, for example loss or head.weight.", is_required=True
            ),
            Parameter("quantity", "Which tensor of it, for example gradient (default: the first that has the name)."),
            STATISTIC,
            RANK,
            FIRST,
            LAST,
            Parameter("points", "The most points to return.", "whole", 100, 2, MOST_POINTS),
        ),
    ),
)
