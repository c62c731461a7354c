"""Endpoints for distributions, what lower precisions would lose, and channels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vario.core.elements.bins import EDGES, HIGHEST, IS_SPLIT, LOWEST, MINUS_INF, NAN, PLUS_INF, ZERO, by_cell
from vario.core.elements.precision import FORMATS
from vario.core.errors import ConfigError
from vario.reports.precision_text import worst
from vario.runs.run import Run
from vario.runs.views.tensors.distributions import quantities_of, quantities_with_detail
from vario.web import bodies
from vario.web.addresses.charts import MOST_STEP
from vario.web.addresses.overview import RUN
from vario.web.api.answers import Endpoint
from vario.web.api.parameters import BadParameter, Parameter
from vario.web.served import Served

MOST_TENSORS = 2000
MOST_COLUMNS = 400
"""Steps of a picture; of more, evenly spaced ones are shown."""

STEP = Parameter("step", "The step (default: the latest).", "whole", low=0, high=MOST_STEP)
QUANTITY = Parameter("quantity", "Only this quantity, for example gradient.", default="")
TARGET = Parameter("target", "The tensor, as it was recorded.", is_required=True)


def precision(served: Served, values: Mapping[str, Any]) -> bodies.Precision:
    """Return what each tensor would lose; nothing if no distributions were recorded."""
    run = served.open(values["run"])
    try:
        table = run.precision(values["quantity"] or None, values["step"])
    except ConfigError:
        if (values["quantity"] or values["step"] is not None) and quantities_with_detail(run):
            raise
        return {"steps": {}, "tensors": [], "num_tensors": 0}
    chosen = sorted(table.tensors, key=lambda one: -worst(one, list(FORMATS)))
    return {"steps": table.steps, "tensors": chosen[:MOST_TENSORS], "num_tensors": len(chosen)}


def distribution(served: Served, values: Mapping[str, Any]) -> bodies.DistributionPicture:
    """Return the distribution of one tensor over steps."""
    run = served.open(values["run"])
    found = run.distribution(values["target"], values["quantity"] or _quantity(run, values["target"]))
    at = np.unique(np.linspace(0, len(found) - 1, min(len(found), MOST_COLUMNS)).astype(int))
    counts = found.counts[at]
    # Cells that are split are one row.
    starts = np.flatnonzero(~IS_SPLIT[:-1])
    cells = np.add.reduceat(by_cell(counts), starts, axis=1)
    exponents = np.array([LOWEST - 1, *np.log2(EDGES[starts][1:])]).astype(int)
    occupied = np.flatnonzero(cells.sum(axis=0))
    shown = slice(int(occupied[0]), int(occupied[-1]) + 1) if len(occupied) else slice(0, 0)
    whole = np.maximum(counts.sum(axis=1), 1)
    return {
        "target": found.target,
        "quantity": found.quantity,
        "steps": found.steps[at].tolist(),
        "exponents": np.clip(exponents[shown], LOWEST - 1, HIGHEST).tolist(),
        "shares": (cells[:, shown] / whole[:, None]).tolist(),
        "zeros": (counts[:, ZERO] / whole).tolist(),
        "bad": counts[:, [NAN, MINUS_INF, PLUS_INF]].sum(axis=1).tolist(),
    }


def _quantity(run: Run, target: str) -> str:
    names = quantities_of(run, target)
    if not names:
        raise BadParameter("target", f"no distribution of '{target[:80]}' was recorded")
    return names[0]


def channels(served: Served, values: Mapping[str, Any]) -> bodies.Channels:
    """Return the largest channels; nothing if they were not recorded."""
    run = served.open(values["run"])
    try:
        found = run.channels(values["step"])
    except ConfigError:
        if values["step"] is not None:
            raise
        return {"tensors": [], "num_tensors": 0}
    chosen = sorted(found, key=lambda one: -one.peak if one.peak == one.peak else 0.0)
    return {"tensors": chosen[:MOST_TENSORS], "num_tensors": len(chosen)}


ENDPOINTS = (
    Endpoint(
        "/api/precision",
        "What each tensor would lose in fp16, bf16 and fp8.",
        precision,
        (RUN, QUANTITY, STEP),
        body=bodies.Precision,
    ),
    Endpoint(
        "/api/distribution",
        "How one tensor's elements are distributed over powers of two, over steps.",
        distribution,
        (RUN, TARGET, QUANTITY),
        body=bodies.DistributionPicture,
    ),
    Endpoint(
        "/api/channels",
        "The largest channels of weights and activations.",
        channels,
        (RUN, STEP),
        body=bodies.Channels,
    ),
)
