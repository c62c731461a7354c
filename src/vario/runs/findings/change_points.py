"""The steps at which levels shifted: a joint search over the loss, gradients, activations and updates of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vario.core.quantities import GRADIENT_NORM
from vario.core.records import ROOT
from vario.core.text import number
from vario.runs.files.listing_cache import listings_cached
from vario.runs.findings.movements import Values, median, scaled
from vario.runs.reader import RunReader
from vario.runs.views.grid import FEW_CELLS, Grid, Steps, read_grid

LOOKED_AT = {"gradient": "rms", "activation": "rms", "update": "max", "attention": "mean", "expert": "mean"}
NUMBERS = ("loss", "lr", GRADIENT_NORM, "val_", "eval_", "accuracy", "batch_repeated")
"""What the names of plain numbers begin with that are searched: others, such as times, have levels of their own."""
WINDOW, LEAST_WINDOW = 8, 3
"""Points on each side of a shift that are averaged."""
ALONE, JOINED, LEAST_SCORE = 8.0, 4.0, 12.0
"""How far beyond its noise one series must shift, or each of several, and what all of a step must add up to."""
SEVERAL, COMMON_SHARE = 4, 0.25
"""How many weak shifts at one step count together: at least so many, and this share of the series of a quantity."""
LEAST_SIZE = float(np.log(1.25))
LEAST_SPREAD = 0.02
CLIPPED = 30.0
"""The most that one series counts."""
NEAR = 2
"""Shifts so many steps apart began together."""
MOST_PER_SERIES = 3
LOOKED_BACK, LOOKED_AHEAD = 400, 100
"""Steps around an incident that are searched."""


@dataclass(frozen=True)
class Shift:
    """One series that moved to another level."""

    quantity: str
    target: str
    statistic: str
    step: int
    """The first recorded step at the new level."""
    unseen_from: int
    """The first step it may have begun at: the one after the last recorded step at the old level."""
    before: float
    after: float
    score: float
    """The size of the shift, in units of the noise of such a comparison."""


@dataclass(frozen=True)
class ChangePoint:
    """A step at which one or several series moved to another level."""

    step: int
    shifts: tuple[Shift, ...]
    """Strongest first; series that are watched rarely count if they may have begun at that step."""
    counts: tuple[tuple[str, int, int], ...]
    """For each quantity how many of its series shifted, and how many were searched."""
    score: float


@listings_cached()
def find_change_points(
    run: RunReader, first: int | None = None, last: int | None = None, top: int = 5
) -> tuple[ChangePoint, ...]:
    """Search a run, or its steps from `first` to `last`, for steps at which levels shifted; strongest first."""
    shifts: list[Shift] = []
    searched: dict[str, int] = {}
    for quantity, statistic in {**LOOKED_AT, "scalar": "value"}.items():
        if not run.ranks or quantity not in run.quantities("all"):
            continue
        grid = _grid(run, quantity, first)
        if grid is None:
            continue
        kept = grid.steps <= (grid.steps[-1] if last is None else last)
        table = grid.statistics.get(statistic, next(iter(grid.statistics.values())))[:, kept]
        rows = [row for row, name in enumerate(grid.targets) if _is_searched(quantity, name)]
        searched[quantity] = len(rows)
        shifts += _shifts(quantity, statistic, [grid.targets[row] for row in rows], grid.steps[kept], table[rows])
    found = [point for point in _together(shifts, searched) if _is_clear(point)]
    return tuple(sorted(found, key=lambda point: -point.score)[:top])


def _is_clear(point: ChangePoint) -> bool:
    """Whether one of its series shifted clearly, or enough of them did so together."""
    if point.score < LEAST_SCORE:
        return False
    is_common = any(count >= max(SEVERAL, COMMON_SHARE * searched) for _, count, searched in point.counts)
    return is_common or max(shift.score for shift in point.shifts) >= ALONE


def began_with(run: RunReader, step: int, last_step: int) -> ChangePoint | None:
    """Return what shifted at a step, up to `last_step`, or between two looks around it; None if nothing did."""
    near = [
        point
        for point in find_change_points(run, max(0, step - LOOKED_BACK), last_step + LOOKED_AHEAD, 20)
        if any(_may_begin_at(shift, step) for shift in point.shifts)
    ]
    return max(near, key=lambda point: point.score, default=None)


def described(shift: Shift) -> str:
    """Describe a shift in words."""
    noun = "" if shift.quantity == "scalar" else f"{shift.quantity.replace('_', ' ')} {shift.statistic} of "
    name = shift.target if shift.quantity == "scalar" else f"'{shift.target}'"
    return f"{noun}{name} {number(shift.before, 3)} → {number(shift.after, 3)}"


def point_text(point: ChangePoint, most: int = 4) -> str:
    """Describe a change point in one line: the strongest shifts, then how many of each quantity shifted."""
    named: dict[str, Shift] = {}
    for shift in sorted(point.shifts, key=lambda found: -found.score):
        named.setdefault(f"{shift.quantity} {shift.target if shift.quantity == 'scalar' else ''}", shift)
    parts = [described(shift) for shift in list(named.values())[:most]]
    many = [f"{count} of {whole} of {name}" for name, count, whole in point.counts if count > 1 and name != "scalar"]
    return ", ".join(parts) + (f" (shifted: {', '.join(many)})" if many else "")


def _grid(run: RunReader, quantity: str, first: int | None) -> Grid | None:
    """All series of a quantity; of a long run its last steps, as many as fit."""
    steps = run.steps(quantity, "all")
    steps = steps[steps >= (0 if first is None else first)]
    fitting = max(1, FEW_CELLS // max(1, len(run.targets(quantity))))
    if len(steps) < 4 * LEAST_WINDOW or fitting < 4 * LEAST_WINDOW:
        return None
    return read_grid(run, quantity, int(steps[-fitting:][0]))


def _is_searched(quantity: str, name: str) -> bool:
    if quantity == "scalar":
        return name.startswith(NUMBERS)
    if quantity == "update":
        return name.endswith(":pace")  # per learning rate: a schedule changes updates all the time
    # What goes into a module is what came out of another.
    return quantity != "activation" or ":input" not in name or name.startswith(f"{ROOT}:")


def _shifts(quantity: str, statistic: str, targets: Sequence[str], steps: Steps, values: Values) -> Iterator[Shift]:
    if not len(targets):
        return
    for row, (name, series) in enumerate(zip(targets, values, strict=True)):
        known = np.isfinite(series)
        if known.sum() < 4 * LEAST_WINDOW:
            continue
        with np.errstate(all="ignore"):
            x, _ = scaled(series[known][None], statistic, None)
        if np.isfinite(x).sum() < known.sum() / 2:
            continue  # mostly zero
        at, when = np.flatnonzero(known), steps[known]
        for column, score in _columns(x[0], at_once=quantity == "scalar" and name.startswith("lr")):
            window = _window(len(when))
            yield Shift(
                quantity=quantity,
                target=name,
                statistic=statistic,
                step=int(when[column]),
                unseen_from=int(when[column - 1]) + 1,
                before=float(median(values[row][None, at[max(0, column - window) : column]])[0]),
                after=float(median(values[row][None, at[column : column + window]])[0]),
                score=score,
            )


def _window(length: int) -> int:
    return int(np.clip(length // 8, LEAST_WINDOW, WINDOW))


def _columns(x: Values, at_once: bool) -> Iterator[tuple[int, float]]:
    """Where a series shifts, and how far beyond its noise: the means on both sides of a point, less their trend.

    `at_once`: only those that happen in one step, such as the jump of a rate that a schedule moves slowly.
    """
    x = np.where(np.isfinite(x), x, np.nanmedian(x))
    window = _window(len(x))
    if len(x) < 4 * window:
        return
    sums = np.concatenate([[0.0], np.cumsum(x)])
    means = (sums[window:] - sums[:-window]) / window
    places = np.arange(2 * window, len(x) - window + 1)
    earlier, before, after = means[places - 2 * window], means[places - window], means[places]
    trend = before - earlier
    # What follows says more about the trend than what was before, where there is enough of it.
    has_later = places + 2 * window <= len(x)
    later = means[np.minimum(places + window, len(means) - 1)]
    trend = np.where(has_later, (trend + later - after) / 2, trend)
    jump = after - before - trend
    noise = 1.4826 * float(np.median(np.abs(np.diff(x)))) / np.sqrt(2) * np.sqrt(np.where(has_later, 5, 6) / window)
    usual = 1.4826 * float(np.median(np.abs(jump - np.median(jump))))
    z = np.abs(jump) / np.maximum(np.maximum(noise, usual), LEAST_SPREAD)
    z[np.abs(jump) < LEAST_SIZE] = 0.0
    for _ in range(MOST_PER_SERIES):
        best = int(np.argmax(z))
        if z[best] < JOINED:
            return
        found = _exact(x, int(places[best]), float(jump[best]), window)
        if found is not None or not at_once:
            yield int(places[best]) if found is None else found, float(z[best])
        z[max(0, best - 2 * window) : best + 2 * window + 1] = 0.0


def _exact(x: Values, column: int, jump: float, window: int) -> int | None:
    """The largest single step near a shift, if it is much of it."""
    near = np.arange(max(1, column - window), min(len(x), column + window))
    leaps = (x[near] - x[near - 1]) * np.sign(jump)
    best = int(np.argmax(leaps))
    return int(near[best]) if leaps[best] > abs(jump) / 3 else None


def _together(shifts: Sequence[Shift], searched: dict[str, int]) -> Iterator[ChangePoint]:
    """Shifts that began together: those whose steps agree, with those of rarely watched series that may have."""
    rest = sorted(shifts, key=lambda shift: -shift.score)
    while rest:
        steps = [shift.step for shift in rest]
        support = [sum(_may_begin_at(other, step) * min(other.score, CLIPPED) for other in rest) for step in steps]
        step = steps[int(np.argmax(support))]
        own = [shift for shift in rest if _may_begin_at(shift, step)]
        # The series that is watched most often says when it was.
        first = min(own, key=lambda shift: (shift.step - shift.unseen_from, abs(shift.step - step), -shift.score))
        counts: dict[str, set[str]] = {}
        for shift in own:
            counts.setdefault(shift.quantity, set()).add(shift.target)
        yield ChangePoint(
            step=first.step,
            shifts=tuple(own),
            counts=tuple((name, len(found), searched[name]) for name, found in counts.items()),
            score=float(max(support)),
        )
        rest = [shift for shift in rest if not _may_begin_at(shift, step)]


def _may_begin_at(shift: Shift, step: int) -> bool:
    return shift.unseen_from - NEAR <= step <= shift.step + NEAR
