"""Endpoints for two runs: where they diverge, what differs most, and a heat map of the difference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from vario.runs.compare.difference import diff
from vario.runs.compare.name_alignment import find_translation
from vario.runs.run import Run
from vario.runs.views.heat import Heat, read_heat
from vario.runs.views.status.quantity_size import check_size, rows_bytes
from vario.web import bodies
from vario.web.addresses.charts import (
    COLUMNS,
    FIRST,
    HEAT_FORMAT,
    LAST,
    QUANTITY,
    ROWS,
    STATISTIC,
    heat_answer,
    heat_head,
    the_quantity,
)
from vario.web.api.answers import BYTES, JSON, Answer, Endpoint
from vario.web.api.parameters import Parameter
from vario.web.served import Served

A = Parameter("a", "The first run: its path below the served folder.", is_required=True)
B = Parameter("b", "The second run.", is_required=True)
MOST_ROWS = 20_000
COMPARED_BYTES = 64 << 20
"""The most bytes of two runs that are compared; all their rows are in memory at once."""
SIGNED = ("mean", "min", "max", "value")
"""Statistics that may be negative: shown as a difference; sizes are shown as a ratio."""


def compare(served: Served, values: Mapping[str, Any]) -> bodies.Comparison:
    """Return where two runs diverge, and what differs most."""
    a, b = served.open(values["a"]), served.open(values["b"])
    quantity = values["quantity"]
    num_bytes = rows_bytes(a, quantity) + rows_bytes(b, quantity)
    check_size("quantity", num_bytes, COMPARED_BYTES, "Choose a smaller quantity, or run `vario diff`.")
    wanted = [quantity] if quantity else None
    found = diff(a, b, quantities=wanted, top=values["top"])
    return {
        "divergence": found.divergence,
        "first_unequal": found.first_unequal,
        "text": str(found),
        "num_steps": found.num_steps,
        "num_targets": found.num_targets,
        "noise": found.noise,
        "renamed": found.renamed,
        "differences": found.most,
        "unmatched": [*(f"a: {name}" for name in found.only_a), *(f"b: {name}" for name in found.only_b)],
        "settings": {name: {"a": _text(ours), "b": _text(theirs)} for name, (ours, theirs) in found.settings.items()},
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def compare_heat(served: Served, values: Mapping[str, Any]) -> Answer:
    """Return the difference of two runs by layer."""
    a, b = served.open(values["a"]), served.open(values["b"])
    heat, kind = difference_heat(a, b, values)
    return heat_answer(heat, values["format"], {**heat_head(heat), "difference": kind})


def difference_heat(a: Run, b: Run, values: Mapping[str, Any]) -> tuple[Heat, Literal["ratio", "minus"]]:
    """Build a heat map of `b` relative to `a`: log10 of the ratio for sizes, the difference for signed statistics."""
    quantity = the_quantity(a, values["quantity"])
    steps = _common(a, b, quantity, values)
    asked = (quantity, values["statistic"], "all", *steps, MOST_ROWS, values["columns"])
    ours, theirs = read_heat(a, *asked), read_heat(b, *asked)
    translate, _ = find_translation(ours.targets, theirs.targets)
    places = {name: row for row, name in enumerate(theirs.targets)}
    both = [(row, places[new]) for row, name in enumerate(ours.targets) if (new := translate(name)) in places]
    rows_a, rows_b = np.array(both, np.int64).reshape(-1, 2).T
    # A column of the second run belongs to the column of the first in which it ends.
    columns = np.searchsorted(ours.last, theirs.last)
    inside = columns < len(ours.last)
    shape = (len(rows_a), len(ours.last))
    second, bad, has = np.full(shape, np.nan, np.float32), np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
    second[:, columns[inside]] = theirs.values[rows_b][:, inside]
    bad[:, columns[inside]] = theirs.bad[rows_b][:, inside]
    has[:, columns[inside]] = theirs.has[rows_b][:, inside]
    first = ours.values[rows_a]
    is_ratio = ours.statistic not in SIGNED
    with np.errstate(all="ignore"):
        apart = np.log10(second / first) if is_ratio else second - first
    apart[~np.isfinite(apart)] = np.nan
    apart[(first == second) & np.isfinite(first)] = 0
    found = dataclasses.replace(
        ours,
        targets=tuple(ours.targets[row] for row in rows_a),
        groups=tuple(ours.groups[row] for row in rows_a),
        values=apart.astype(np.float32),
        bad=(ours.bad[rows_a] | bad).astype(np.uint8),
        has=(ours.has[rows_a] & has).astype(np.uint8),
        is_rollup=ours.is_rollup or theirs.is_rollup,
        kinds=(),  # whether token ids differ is of interest
        left_out=(),
    )
    return _fewer_rows(found, values["rows"]), "ratio" if is_ratio else "minus"


def _common(a: Run, b: Run, quantity: str, values: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """The range of common steps."""
    ends = [steps for run in (a, b) if run.ranks and len(steps := run.steps(quantity, run.ranks[0]))]
    first, last = values["first"], values["last"]
    if ends:
        lowest, highest = max(int(steps[0]) for steps in ends), min(int(steps[-1]) for steps in ends)
        first = lowest if first is None else max(first, lowest)
        last = highest if last is None else min(last, highest)
    return first, last


def _fewer_rows(heat: Heat, limit: int) -> Heat:
    if len(heat.targets) <= limit:
        return heat
    bounds = np.linspace(0, len(heat.targets), limit + 1).astype(np.int64)
    starts = bounds[:-1]
    with np.errstate(all="ignore"):
        low, high = (fold.reduceat(heat.values, starts, axis=0) for fold in (np.fmin, np.fmax))
    return dataclasses.replace(
        heat,
        targets=tuple(heat.targets[start] for start in starts),
        groups=tuple(int(count) for count in np.add.reduceat(np.array(heat.groups), starts)),
        values=np.where(np.abs(low) > np.abs(high), low, high),
        bad=np.bitwise_or.reduceat(heat.bad, starts, axis=0),
        has=np.bitwise_or.reduceat(heat.has, starts, axis=0),
    )


ENDPOINTS = (
    Endpoint(
        "/api/compare",
        "Where two runs diverge, and which series differ most at the end.",
        compare,
        (A, B, QUANTITY, STATISTIC, Parameter("top", "The most differences to return.", "whole", 20, 1, 1000)),
        body=bodies.Comparison,
    ),
    Endpoint(
        "/api/compare/heat",
        "The difference of two runs as a heat map: log10 of b/a for sizes, b - a for signed statistics.",
        compare_heat,
        (A, B, QUANTITY, STATISTIC, FIRST, LAST, ROWS, COLUMNS, HEAT_FORMAT),
        (BYTES, JSON),
        bodies.HeatTable,
        bodies.HeatHead,
    ),
)
