"""Finds the first place at which two runs differ, and the first at which they differ beyond noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vario.core.machine_options import PREFIX
from vario.rules.api.rule import stage_of
from vario.rules.api.series_state import Trend
from vario.runs.findings.movements import median
from vario.runs.views.grid import Grid, Values

WARM = 8
THRESHOLD = 8.0
LEAST_FACTOR, MOST_FACTOR = 2.5, 10.0
"""How many times the largest difference so far: rounding errors grow, the series' own noise does not."""
ROUNDING = 2e-4
"""Differences up to this may be rounding, where large numbers cancel."""
FARTHEST = 50.0
"""The difference from a NaN, and from a missing row."""
STAGE = 1e9
"""Larger than any order within a stage of a step."""
CLOCKS = ("_seconds", "_bytes", "_per_second", "memory", "time", "overhead", "interval/", PREFIX)
"""Plain numbers that differ between machines or over time, and what follows from them."""
TWO_WAYS, TWO_WAYS_DIGITS = ("gradient_norm",), 1e-6
"""Plain numbers that come from recorded rows in some steps and from one float32 reduction in others."""


@dataclass(frozen=True)
class Place:
    """One tensor at one step, in both runs."""

    step: int
    quantity: str
    target: str
    """Its name in the first run."""
    statistic: str
    a: float
    b: float
    size: float
    """The logarithm of their ratio, or their difference relative to their size."""
    noise: float
    """The largest difference before."""


@dataclass(frozen=True)
class Pairs:
    """All common series of one quantity and statistic."""

    quantity: str
    statistic: str
    targets: tuple[str, ...]
    order: Values
    """The position of each within a step."""
    steps: npt.NDArray[np.int64]
    a: Values
    b: Values
    apart: Values
    """Their signed difference; 0 only if they are bit-identical, NaN if one has no number."""
    own: Values
    """How much each series varies from step to step."""


def paired(first: Grid, second: Grid, both: list[tuple[int, int]]) -> list[Pairs]:
    """Align the series of two runs: `both` are their rows, common steps the columns."""
    if first.quantity == "scalar":
        both = [(row, other) for row, other in both if not any(word in first.targets[row] for word in CLOCKS)]
    steps, at_a, at_b = np.intersect1d(first.steps, second.steps, return_indices=True)
    if not both or not len(steps):
        return []
    rows_a, rows_b = (np.array(rows, np.int64) for rows in zip(*both, strict=True))
    tables = {
        name: (values[rows_a][:, at_a], second.statistics[name][rows_b][:, at_b])
        for name, values in first.statistics.items()
        if name in second.statistics and name != "zeros"
    }
    sizes = tables.get("rms")
    found = []
    for statistic, (ours, theirs) in tables.items():
        if statistic == "mean" and sizes is None:
            continue
        apart, own = _apart(statistic, ours, theirs, sizes)
        names = tuple(first.targets[row] for row in rows_a)
        if first.quantity == "scalar":
            # What is logged, and what probes record when the overhead allows it, need not come at the same steps.
            bad = first.bad[rows_a][:, at_a], second.bad[rows_b][:, at_b]
            in_both = (np.isfinite(ours) | bad[0]) & (np.isfinite(theirs) | bad[1])
            apart = np.where(in_both, apart, np.nan)
            is_close = np.isin(names, TWO_WAYS)[:, None] & (np.abs(apart) < TWO_WAYS_DIGITS)
            apart = np.where(is_close, 0.0, apart)
        # A quantity that is watched less often does not come later within a step.
        stages = np.array([stage_of(first.quantity, name) for name in names])
        order = stages * STAGE + np.fmin(first.order[rows_a], STAGE)
        pair = Pairs(first.quantity, statistic, names, order, steps, ours, theirs, apart, own)
        found.append(pair)
    return found


def _apart(statistic: str, a: Values, b: Values, sizes: tuple[Values, Values] | None) -> tuple[Values, Values]:
    """The signed difference of each pair of numbers, and how much each series varies."""
    with np.errstate(all="ignore"):
        if statistic == "mean" and sizes is not None:
            scale = np.fmax(sizes[0], sizes[1])
            apart, courses = (a - b) / scale, (a / sizes[0], b / sizes[1])
        elif statistic == "value":
            scale = np.fmax(np.abs(a), np.abs(b))
            apart, courses = (a - b) / scale, (a / median(np.abs(a))[:, None], b / median(np.abs(b))[:, None])
        else:
            # If a size briefly drops to almost zero, the rest is mostly rounding.
            usual = 0.1 * np.fmin(median(a), median(b))[:, None]
            usual = np.where(np.isfinite(usual), usual, 0.0)
            apart, courses = np.log(a + usual) - np.log(b + usual), (np.log(a), np.log(b))
        is_number = np.isfinite(a) & np.isfinite(b)
        is_one = np.isfinite(a) ^ np.isfinite(b)
        apart = np.where(is_number & ~np.isfinite(apart), np.sign(a - b) * FARTHEST, apart)
        # The logarithm may lose a difference, but not the fact that there is one.
        apart = np.where(a == b, 0.0, np.where(is_number & (apart == 0), 1e-18, apart))
        apart = np.where(is_number, apart, np.where(is_one, FARTHEST, np.nan))
        finite = [np.where(np.isfinite(course), course, np.nan) for course in courses]
        own = [1.4826 * median(np.abs(np.diff(course, axis=1))) / np.sqrt(2) for course in finite]
    return np.clip(apart, -FARTHEST, FARTHEST), np.nan_to_num(np.fmax(*own))


def first_unequal(pairs: Sequence[Pairs]) -> Place | None:
    """Return the first place at which two runs are not bit-identical."""
    best: tuple[tuple[int, float], Place] | None = None
    for pair in pairs:
        differs = np.nan_to_num(pair.apart) != 0
        if differs.any():
            column = int(np.argmax(differs.any(axis=0)))
            rows = np.flatnonzero(differs[:, column])
            row = int(rows[np.argmin(pair.order[rows])])
            key = int(pair.steps[column]), float(pair.order[row])
            if best is None or key < best[0]:
                best = key, _place(pair, row, column, 0.0)
    return None if best is None else best[1]


def _place(pair: Pairs, row: int, column: int, noise: float) -> Place:
    return Place(
        step=int(pair.steps[column]),
        quantity=pair.quantity,
        target=pair.targets[row],
        statistic=pair.statistic,
        a=float(pair.a[row, column]),
        b=float(pair.b[row, column]),
        size=abs(float(pair.apart[row, column])),
        noise=noise,
    )


def first_divergence(pairs: Sequence[Pairs]) -> Place | None:
    """Return the first place, by step and then in the order of a step, that exceeds the noise."""
    best: tuple[tuple[int, float], Place] | None = None
    for pair in pairs:
        limit = None if best is None else best[0][0]
        found = _leaves_noise(pair, limit)
        if found is not None:
            row, column, noise = found
            key = int(pair.steps[column]), float(pair.order[row])
            if best is None or key < best[0]:
                best = key, _place(pair, row, column, noise)
    return None if best is None else best[1]


def _leaves_noise(pair: Pairs, limit: int | None) -> tuple[int, int, float] | None:
    """Row, column and noise of the first difference that is out of proportion to those before it."""
    trend = Trend(linear=True, floor=1e-9)
    largest = np.zeros(len(pair.targets))
    with np.errstate(all="ignore"):
        for column, step in enumerate(pair.steps):
            if limit is not None and step > limit:
                return None
            apart = pair.apart[:, column]
            size = np.nan_to_num(np.abs(apart))
            found = trend.update(pair.targets, apart)
            if column >= WARM:
                # Rounding appears earlier in some series than in others: what most have had by now is noise for all.
                noise = np.maximum(largest, np.quantile(largest, 0.9))
                factor = np.clip(pair.own / noise, LEAST_FACTOR, MOST_FACTOR)
                off = (np.abs(found.z) > THRESHOLD) & (size > np.nan_to_num(factor, nan=MOST_FACTOR) * noise)
                off &= (found.age >= WARM) & (size > ROUNDING)
                if off.any():
                    rows = np.flatnonzero(off)
                    row = int(rows[np.argmin(pair.order[rows])])
                    return row, column, float(noise[row])
            largest = np.maximum(largest, size)
    return None


def comes_after_equals(pairs: Sequence[Pairs], place: Place) -> bool:
    """Whether everything before it in the same step was bit-identical."""
    orders = [
        order
        for pair in pairs
        if place.step in pair.steps
        for order in pair.order[~np.isnan(pair.apart[:, int(np.searchsorted(pair.steps, place.step))])]
    ]
    own = min(
        float(pair.order[pair.targets.index(place.target)])
        for pair in pairs
        if (pair.quantity, pair.statistic) == (place.quantity, place.statistic)
    )
    return any(order < own for order in orders)


def kind_of_noise(pairs: Sequence[Pairs]) -> str:
    """Return whether the first differences are rounding, or as large as the series' own noise."""
    sizes = [median(np.abs(pair.apart[:, :WARM])) for pair in pairs]
    typical = float(np.nanmedian(np.concatenate(sizes)))
    return "rounding" if typical < 1e-3 else "own"
