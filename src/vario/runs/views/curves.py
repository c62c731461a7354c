"""A series made small without losing what one looks for: the lowest and highest of each bucket, and every NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vario.runs.files.rollups import settled
from vario.runs.files.row_files import Wanted
from vario.runs.reader import SIDED, RunReader
from vario.runs.views.merged_series import Flags, Points, Steps, Values, folded_numbers, merged_numbers
from vario.runs.views.read_plan import choose_level
from vario.runs.views.rollup_reader import Block, RankRollups
from vario.runs.views.view_source import Source, open_source

MOST_ROWS = float("inf")
MOST_FILES = 100
"""The most files to open: opening one costs more than reading a series in it."""


@dataclass(frozen=True)
class Curve:
    """One statistic of one target over buckets of steps."""

    target: str
    quantity: str
    statistic: str
    rank: int | str
    steps: npt.NDArray[np.int64]
    """The last step of each bucket."""
    low: npt.NDArray[np.float64]
    """The lowest finite value in it; NaN where there is none."""
    high: npt.NDArray[np.float64]
    last: npt.NDArray[np.float64]
    """The value at its last step."""
    bad: npt.NDArray[np.bool_]
    """Where there is a NaN or Inf."""
    times: npt.NDArray[np.float64]
    """Unix seconds at which that step ended; NaN if unknown."""
    is_whole: bool
    """Whether every recorded point is there."""
    thinned: tuple[tuple[int, int], ...] = ()
    """First and last step of each range whose rows were dropped as they grew old: only buckets are left of them."""

    def __len__(self) -> int:
        return len(self.steps)


def read_curve(
    run: RunReader,
    target: str,
    quantity: str,
    statistic: str = "",
    rank: int | str = "all",
    first: int | None = None,
    last: int | None = None,
    points: int | None = 1000,
) -> Curve:
    """A series over the steps of a range in at most so many points; None: in all of them.

    `rank` is as in `read_heat`. A long run is read from its rollups: no NaN and no extreme is lost.
    """
    return settled(lambda: _read(run, target, quantity, statistic, rank, first, last, points))


def _read(
    run: RunReader,
    target: str,
    quantity: str,
    statistic: str,
    rank: int | str,
    first: int | None,
    last: int | None,
    points: int | None,
) -> Curve:
    names = [target, f"{target}:output"] if quantity in SIDED and ":" not in target else [target]
    for name in names:
        source = open_source(run, quantity, statistic, rank, Wanted(name, first, last))
        level = 0 if points is None else choose_level(source.views, source.wanted, points, MOST_ROWS, MOST_FILES)
        # Where rows are gone, rollups stand for them, even if every point is asked for.
        until = source.thinned_until() if level == 0 else None
        if until is not None:
            # Rows around incidents are all there; those of several ranks need not be of the same steps.
            strips = [_from_rollups(source.part(None, until), 1)]
            strips.append(_from_rows(source if len(source.views) == 1 else source.part(until + 1, None)))
            found = _once(_joined(strips))
        else:
            found = _from_rows(source) if level == 0 else _from_rollups(source, level)
        if len(found.steps):
            break
    else:
        # A known name has nothing in this range; for an unknown one this raises the error.
        name = run.series(target, quantity, source.statistic, rank if isinstance(rank, int) else "all").target
    small = found if points is None else _fewer(found, points)
    is_whole = level == 0 and until is None and len(small.steps) == len(found.steps)
    times = run.reader(run.ranks[0], "scalar").times(run.sessions, small.steps) if run.ranks else np.zeros(0)
    return Curve(
        name,
        quantity,
        source.statistic,
        rank,
        small.steps,
        small.low,
        small.high,
        small.last,
        small.bad,
        times,
        is_whole,
        source.thinned(),
    )


@dataclass(frozen=True)
class _Strip:
    """A curve being built."""

    steps: Steps
    low: Values
    high: Values
    last: Values
    bad: Flags
    count: float = 1.0


def _from_rows(source: Source) -> _Strip:
    return _joined([_of_points(points) for points in source.points()])


def _of_points(points: Points) -> _Strip:
    values = np.where(np.isfinite(points.values), points.values, np.nan)
    count = float(points.counts[0]) if len(points.counts) else 1.0
    return _Strip(points.steps, values, values, points.values, points.bad, count)


def _joined(strips: Sequence[_Strip]) -> _Strip:
    """Join strips of different steps."""
    none = np.zeros(0)
    steps = np.concatenate([np.zeros(0, np.int64), *(strip.steps for strip in strips)])
    order = np.argsort(steps, kind="stable")
    low, high, last = (
        np.concatenate([none, *(getattr(strip, name) for strip in strips)])[order] for name in ("low", "high", "last")
    )
    bad = np.concatenate([np.zeros(0, np.bool_), *(strip.bad for strip in strips)])[order]
    return _Strip(steps[order], low, high, last, bad, max((strip.count for strip in strips), default=1.0))


def _once(strip: _Strip) -> _Strip:
    """Merge points of the same step."""
    starts = np.flatnonzero(np.append(True, np.diff(strip.steps) != 0)) if len(strip.steps) else strip.steps
    if len(starts) == len(strip.steps):
        return strip
    ends = np.append(starts[1:], len(strip.steps)) - 1
    return _Strip(
        strip.steps[ends],
        np.fmin.reduceat(strip.low, starts),
        np.fmax.reduceat(strip.high, starts),
        strip.last[ends],
        np.logical_or.reduceat(strip.bad, starts),
        strip.count,
    )


def _from_rollups(source: Source, level: int) -> _Strip:
    """Each rank by itself, then what they come to together."""
    assert source.wanted.target is not None
    groups: dict[int, _Strip] = {}
    for view in source.views:
        group = int(source.groups([source.wanted.target], view.rank)[0])
        if group < 0:
            continue
        rollups = RankRollups(source, view, level)
        strips = [
            _Strip(block.last_step, block.low, block.high, block.last, block.bad, _size(block))
            for block in rollups.blocks(is_whole=True)
            if len(block.codes)
        ]
        strip = _joined([*strips, *map(_of_points, rollups.points)])
        # Of replicas only the first counts.
        if len(strip.steps) and group not in groups:
            groups[group] = strip
    if len(groups) < 2:
        return next(iter(groups.values()), _joined([]))
    return _merged(source, list(groups.values()))


def _size(block: Block) -> float:
    return 1.0 if block.count is None else float(block.count[0])


def _merged(source: Source, strips: Sequence[_Strip]) -> _Strip:
    """Align the strips of several ranks to the steps of the longest one."""
    steps = max((strip.steps for strip in strips), key=len)
    on_grid = [_regridded(strip, steps) for strip in strips]
    counts = [np.full(len(steps), strip.count) for strip in strips]
    low, high, last = (
        folded_numbers(source.fold, numbers)
        if source.fold is not None
        else merged_numbers(source.statistic, numbers, counts)
        for numbers in ([getattr(strip, name) for strip in on_grid] for name in ("low", "high", "last"))
    )
    return _Strip(
        steps, np.fmin(low, high), np.fmax(low, high), last, np.logical_or.reduce([one.bad for one in on_grid])
    )


def _regridded(strip: _Strip, steps: Steps) -> _Strip:
    """A strip with its buckets gathered at these last steps; NaN where it has none."""
    at = np.minimum(np.searchsorted(steps, strip.steps, "left"), len(steps) - 1)
    low, high, last = (np.full(len(steps), np.nan) for _ in range(3))
    bad = np.zeros(len(steps), np.bool_)
    np.fmin.at(low, at, strip.low)
    np.fmax.at(high, at, strip.high)
    last[at] = strip.last
    bad[at[strip.bad]] = True
    return _Strip(steps, low, high, last, bad, strip.count)


def _fewer(strip: _Strip, limit: int) -> _Strip:
    num = min(len(strip.steps), max(1, limit))
    if num == len(strip.steps):
        return strip
    bounds = np.linspace(0, len(strip.steps), num + 1).astype(np.int64)
    starts, ends = bounds[:-1], bounds[1:] - 1
    return _Strip(
        strip.steps[ends],
        np.fmin.reduceat(strip.low, starts),
        np.fmax.reduceat(strip.high, starts),
        strip.last[ends],
        np.logical_or.reduceat(strip.bad, starts),
    )
