"""One logged number of many runs in a chart: each run as a line; of many runs, and of groups, mean and range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vario.core.errors import ConfigError
from vario.core.text import suggestion
from vario.runs.reader import RunReader
from vario.runs.table.columns import Column, order_key
from vario.runs.table.summary import RunSummary
from vario.runs.table.table import group_text
from vario.runs.views.curves import Curve, read_curve
from vario.runs.views.status.courses import is_better_higher

Values = npt.NDArray[np.float64]

MOST_LINES = 16
"""With more runs, or groups, the range of all of them is shown and a few lines."""
FEW_LINES = 5
MOST_RUNS = 500
STEP, TIME = "step", "time"


@dataclass(frozen=True)
class OverlayLine:
    """A line of the chart: a run, or the mean of several with their range."""

    label: str
    run: str | None
    """None if it stands for several."""
    num_runs: int
    x: Values
    low: Values
    high: Values
    value: Values
    """Of a run its value, of several their mean (of all runs: their median)."""
    best: float | None


@dataclass(frozen=True)
class Overlay:
    """One number of many runs."""

    number: str
    lines: tuple[OverlayLine, ...]
    text: str
    """What the lines are, where that is not one line for each run."""


@dataclass(frozen=True)
class _Course:
    run: RunSummary
    x: Values
    low: Values
    high: Values
    value: Values

    @property
    def best(self) -> tuple[float, float]:
        """The lowest and the highest value."""
        known = np.concatenate([self.low, self.high])
        known = known[np.isfinite(known)]
        return (float(known.min()), float(known.max())) if len(known) else (np.nan, np.nan)


def read_overlay(
    runs: Sequence[RunSummary],
    opened: Callable[[RunSummary], RunReader],
    number: str,
    along: str = STEP,
    is_best_so_far: bool = False,
    by: Column | None = None,
    points: int = 300,
) -> Overlay:
    """Read one number of these runs; `along` is step, time (since each run's start), or a number that grows."""
    having = [run for run in runs if number in run.brief.numbers]
    if runs and not having:
        known = sorted({name for run in runs for name in run.brief.numbers})
        raise ConfigError(f"number: none of {len(runs)} runs has logged '{number}'. {suggestion(number, known)}")
    courses = [_read(run, opened(run), number, along, points) for run in having[:MOST_RUNS]]
    courses = [course for course in courses if len(course.x)]
    if is_best_so_far:
        courses = [_best_so_far(course, is_better_higher(number)) for course in courses]
    left_out = f" The newest {MOST_RUNS} of {len(having)} runs." if len(having) > MOST_RUNS else ""
    if by is not None:
        lines, text = _grouped(courses, by, number, points)
    elif len(courses) > MOST_LINES:
        lines, text = _extremes(courses, number, points)
    else:
        lines, text = [_line(course, number) for course in courses], ""
    missing = len(runs) - len(having)
    text += left_out + (f" {missing} of {len(runs)} runs have not logged it." if missing else "")
    return Overlay(number, tuple(lines), text.strip())


def _read(summary: RunSummary, run: RunReader, number: str, along: str, points: int) -> _Course:
    rank = run.ranks[0]
    curve = read_curve(run, number, "scalar", "value", rank, points=points)
    x = _places(summary, run, curve, along, rank)
    kept = np.isfinite(x) & np.isfinite(curve.last)
    order = np.argsort(x[kept], kind="stable")
    return _Course(summary, *(values[kept][order] for values in (x, curve.low, curve.high, curve.last)))


def _places(summary: RunSummary, run: RunReader, curve: Curve, along: str, rank: int) -> Values:
    if along == STEP:
        return curve.steps.astype(np.float64)
    if along == TIME:
        return curve.times - summary.brief.started
    if along not in summary.brief.numbers:
        return np.full(len(curve), np.nan)
    other = read_curve(run, along, "scalar", "value", rank, points=1000)
    return np.interp(curve.steps, other.steps, other.last)


def _best_so_far(course: _Course, is_higher: bool) -> _Course:
    best = np.fmax.accumulate(course.high) if is_higher else np.fmin.accumulate(course.low)
    return _Course(course.run, course.x, best, best, best)


def _line(course: _Course, number: str) -> OverlayLine:
    best = course.best[1 if is_better_higher(number) else 0]
    return OverlayLine(course.run.name, course.run.run, 1, course.x, course.low, course.high, course.value, best)


def _grouped(courses: Sequence[_Course], by: Column, number: str, points: int) -> tuple[list[OverlayLine], str]:
    groups: dict[str, list[_Course]] = {}
    for course in courses:
        groups.setdefault(f"{by.title} {group_text(by.read(course.run))}", []).append(course)
    lines = [_together(name, members, number, points, np.nanmean) for name, members in groups.items()]
    kept = sorted(lines, key=lambda line: _rank(line.best, number))[:MOST_LINES]
    places = {name: order_key(by.read(members[0].run)) for name, members in groups.items()}
    kept.sort(key=lambda line: places[line.label])
    text = "Each line is the mean of a group, the band its lowest and highest run."
    if len(lines) > MOST_LINES:
        text += f" The {MOST_LINES} best of {len(lines)} groups."
    return kept, text


def _extremes(courses: Sequence[_Course], number: str, points: int) -> tuple[list[OverlayLine], str]:
    """All runs as one range with its median, and the best few as lines."""
    lines = sorted((_line(course, number) for course in courses), key=lambda line: _rank(line.best, number))
    whole = _together(f"median of {len(courses)} runs", courses, number, points, np.nanmedian)
    text = f"{len(courses)} runs: the band is their range at each point, with the median and the {FEW_LINES} best runs."
    return [whole, *lines[:FEW_LINES]], text


def _rank(best: float | None, number: str) -> float:
    if best is None or np.isnan(best):
        return np.inf
    return -best if is_better_higher(number) else best


def _together(
    label: str, courses: Sequence[_Course], number: str, points: int, middle: Callable[..., Values]
) -> OverlayLine:
    """Several runs at common places; between its points a run is interpolated, beyond its ends it does not count."""
    if len(courses) == 1:
        line = _line(courses[0], number)
        return OverlayLine(label, line.run, 1, line.x, line.low, line.high, line.value, line.best)
    x = np.unique(np.concatenate([course.x for course in courses]))
    if len(x) > points:
        x = np.linspace(x[0], x[-1], points)
    low, high, value = (
        np.array([np.interp(x, each.x, getattr(each, name), np.nan, np.nan) for each in courses])
        for name in ("low", "high", "value")
    )
    known = np.isfinite(value).any(axis=0)
    found = np.array([each.best for each in courses])
    best = float(np.nanmax(found[:, 1]) if is_better_higher(number) else np.nanmin(found[:, 0]))
    lowest, highest = np.fmin.reduce(low[:, known]), np.fmax.reduce(high[:, known])
    return OverlayLine(label, None, len(courses), x[known], lowest, highest, middle(value[:, known], axis=0), best)
