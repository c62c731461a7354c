"""A number per target and step: rows of several ranks merged exactly, or their numbers if rows are gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from vario.core.errors import ConfigError
from vario.core.records import COLUMNS, COUNT, HELD, INFS, NANS, Table, merge
from vario.core.text import unknown
from vario.runs.files.arrays import numbers
from vario.runs.files.budget import SUMMARY_BYTES, Budget
from vario.runs.files.merged_parts import lacking
from vario.runs.files.row_files import Part, Stream, Wanted
from vario.runs.files.store_reader import one_table
from vario.runs.reader import Rank, RunReader
from vario.runs.views.read_plan import View
from vario.statistics import STATISTICS

Values = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

FOLDS = ("min", "mean", "max", "spread")
"""Ways to combine one number per rank."""
ADDED = frozenset({"count", "nans", "infs"})
SQUARED = frozenset({"rms", "std"})


class Holders:
    """Which ranks' rows make up a target, and which of them are replicas."""

    def __init__(self, run: RunReader, quantity: str, rank: Rank, alone: bool = False) -> None:
        """`alone`: do not read this rank's tensors from other ranks."""
        recorded = run.ranks
        self._rank = rank
        self._layout = run.layout if quantity in HELD and len(recorded) > 1 and not alone else None
        if rank == "all":
            chosen = recorded
        else:
            run.check_rank(rank)
            chosen = [rank]
            if self._layout is not None:
                held = [str(parameter.get("name")) for parameter in run.structure(rank)["parameters"]]
                alike = {other for name in held for other in self._layout.alike(name, rank)} - {rank}
                chosen += [other for other in recorded if other in alike]
        self.ranks = [number for number in chosen if quantity in run.quantities(number)]
        """The ranks to read; of replicas the first counts."""

    @property
    def is_shared(self) -> bool:
        """Whether ranks have shards or replicas of a target."""
        return self._layout is not None

    def group(self, target: str, rank: int) -> int:
        """Return the group of a rank: ranks of one group are replicas, groups add up; -1: it has no part of the
        target."""
        if self._layout is None:
            return rank
        if self._rank != "all":
            return 0 if rank == self._rank or rank in self._layout.alike(target, self._rank) else -1
        part = self._layout.counted(target, rank)
        if part is None:
            return -1 if self._layout.holders(target) else rank
        return part


@dataclass(frozen=True)
class Points:
    """Numbers by target and step, in that order; each pair occurs once."""

    names: list[str]
    codes: Steps
    """The index of each point's target in `names`."""
    steps: Steps
    values: Values
    bad: Flags
    """Where there is a NaN or Inf."""
    counts: Values
    """The number of elements behind each number."""


def checked_statistic(run: RunReader, quantity: str, statistic: str) -> str:
    """Return the name of a recorded statistic of a quantity; empty means the default one."""
    # The first rank that has it is enough: with very many ranks, listing all for each curve takes seconds.
    if not any(quantity in run.quantities(rank) for rank in run.ranks):
        raise ConfigError(unknown("quantity", quantity, run.quantities("all")))
    if quantity == "scalar":
        if statistic not in ("", "value"):
            raise ConfigError(unknown("statistic", statistic, ["value"]))
        return "value"
    found = STATISTICS.get(statistic or run.usual_statistic, "statistic")
    run.check_recorded(found.needs, found.name)
    return found.name


def checked_rank(rank: int | str) -> Rank | Literal["min", "mean", "max", "spread"]:
    """Return a rank, all of them, or one of FOLDS; raises for anything else."""
    if isinstance(rank, int) or rank in ("all", *FOLDS):
        return cast(Rank, rank)
    raise ConfigError(unknown("rank", rank, ["all", *FOLDS]))


def read_points(
    views: Sequence[View], quantity: str, statistic: str, holders: Sequence[Holders], wanted: Wanted, fold: str | None
) -> Iterator[Points]:
    """Yield a statistic of one target or all from the rows themselves, some steps at a time, each step once.

    With one of FOLDS, each of the `holders` gives a number, and the fold combines them.
    """
    row_files = [
        (view.rank, row_file, chosen)
        for view in views
        for row_file, chosen in view.plan(0, wanted).row_files
        if row_file.num_rows
    ]
    for together in overlapping(row_files):
        found = [points for one in holders if (points := merged_points(together, quantity, statistic, one)) is not None]
        if fold is not None and found:
            yield _folded(fold, found)
        else:
            yield from found


_Chosen = tuple[int, Stream | Part, Wanted]


def overlapping(row_files: Sequence[_Chosen]) -> Iterator[list[_Chosen]]:
    """Group files that share steps, since their rows may have to be merged."""
    group: list[_Chosen] = []
    end = -1
    for chosen in sorted(row_files, key=lambda chosen: chosen[1].span or (0, 0)):
        first, last = chosen[1].span or (0, 0)
        if group and first > end:
            yield group
            group = []
        end = last if not group else max(end, last)
        group.append(chosen)
    if group:
        yield group


def merged_points(row_files: Sequence[_Chosen], quantity: str, statistic: str, holders: Holders) -> Points | None:
    """Merge the rows of some files; None if there are none."""
    needs = ("value",) if quantity == "scalar" else (*STATISTICS.get(statistic, "statistic").needs, "nans", "infs")
    budget = Budget(SUMMARY_BYTES)
    places_of: dict[str, int] = {}
    rows_of, codes_of, groups_of, steps_of, ranks_of = [], [], [], [], []
    for rank, row_file, wanted in row_files:
        if rank not in holders.ranks:
            continue
        table = one_table([row_file.read(["step", "target", *needs], wanted)], ())
        budget.take(row_file, table.nbytes, table.num_rows)
        if not table.num_rows:
            continue
        column = table.column("target").chunk(0)
        names = column.dictionary.to_pylist()
        groups = np.array([holders.group(name, rank) for name in names], np.int64)
        codes = np.array([places_of.setdefault(name, len(places_of)) for name in names], np.int64)
        places = numbers(column.indices)
        rows = numbers(table.column("value"))[:, None] if quantity == "scalar" else _summaries(table)
        steps = numbers(table.column("step"))
        if (groups < 0).any():
            keep = groups[places] >= 0
            rows, places, steps = rows[keep], places[keep], steps[keep]
        rows_of.append(rows)
        codes_of.append(codes[places])
        groups_of.append(groups[places])
        steps_of.append(steps)
        ranks_of.append(np.full(len(steps), holders.ranks.index(rank)))
    if not rows_of:
        return None
    if len(rows_of) == 1:
        return _merged(list(places_of), codes_of[0], steps_of[0], rows_of[0], statistic)
    several = len({rank for rank, _, _ in row_files}) > 1
    thinned = [row_file.merged for _, row_file, _ in row_files if row_file.merged is not None] if several else []
    rows, codes, steps = np.concatenate(rows_of), np.concatenate(codes_of), np.concatenate(steps_of)
    if several:
        once = _first_of_each(codes, np.concatenate(groups_of), steps, np.concatenate(ranks_of))
        rows, codes, steps = rows[once], codes[once], steps[once]
    points = _merged(list(places_of), codes, steps, rows, statistic)
    return points if not thinned else _without(points, lacking(thinned, points.steps) & ~points.bad)


def _without(points: Points, drop: Flags) -> Points:
    """Drop points: where a rank has dropped its share, the others' would be no value of the whole."""
    kept = (points.codes[~drop], points.steps[~drop], points.values[~drop], points.bad[~drop], points.counts[~drop])
    return Points(points.names, *kept)


def _first_of_each(codes: Steps, groups: Steps, steps: Steps, ranks: Steps) -> Flags:
    """For each step, the rows of the first replica that has it."""
    order = np.lexsort((ranks, steps, groups, codes))
    is_new = np.ones(len(order), np.bool_)
    same = (np.diff(codes[order]) == 0) & (np.diff(groups[order]) == 0) & (np.diff(steps[order]) == 0)
    is_new[1:] = ~same
    leading = ranks[order][np.maximum.accumulate(np.where(is_new, np.arange(len(order)), 0))]
    kept = np.zeros(len(order), np.bool_)
    kept[order] = ranks[order] == leading
    return kept


def _summaries(table: Any) -> Table:
    """Rows as Summaries, with the recorded columns; no memory is touched for the others."""
    rows = np.empty((table.num_rows, len(COLUMNS)), order="F")
    for name in table.column_names:
        if name in COLUMNS:
            rows[:, COLUMNS.index(name)] = numbers(table.column(name))
    return rows


def _merged(names: list[str], codes: Steps, steps: Steps, rows: Table, statistic: str) -> Points:
    by_code, by_step = np.diff(codes), np.diff(steps)
    if not ((by_code > 0) | ((by_code == 0) & (by_step >= 0))).all():
        order = np.lexsort((steps, codes))
        codes, steps, rows = codes[order], steps[order], rows[order]
        by_code, by_step = np.diff(codes), np.diff(steps)
    is_new = np.ones(len(codes), np.bool_)
    is_new[1:] = (by_code != 0) | (by_step != 0)
    starts = np.flatnonzero(is_new)
    if statistic == "value":
        groups = np.cumsum(is_new) - 1
        with np.errstate(invalid="ignore"):
            # Plain numbers do not merge like Summaries: over ranks they are averaged.
            values = np.bincount(groups, rows[:, 0], len(starts)) / np.bincount(groups, minlength=len(starts))
        bad = ~np.isfinite(values)
        counts = np.ones(len(values))
        codes, steps = codes[starts], steps[starts]
    else:
        measure = STATISTICS.get(statistic, "statistic")
        if len(starts) < len(codes):
            for at, name in enumerate(COLUMNS):
                if name not in (*measure.needs, "nans", "infs"):
                    rows[:, at] = np.nan
            rows = merge(rows, np.cumsum(is_new) - 1, len(starts))
            codes, steps = codes[starts], steps[starts]
        values = measure(rows)
        bad = (rows[:, NANS] > 0) | (rows[:, INFS] > 0)
        counts = rows[:, COUNT].copy()
    return Points(names, codes, steps, values, bad, counts)


def _folded(fold: str, each: list[Points]) -> Points:
    """Combine the numbers of several ranks into one per target and step."""
    places_of: dict[str, int] = {}
    places = [np.array([places_of.setdefault(name, len(places_of)) for name in one.names], np.int64) for one in each]
    codes = np.concatenate([place[one.codes] for place, one in zip(places, each, strict=True)])
    steps = np.concatenate([one.steps for one in each])
    values = np.concatenate([one.values for one in each])
    order = np.lexsort((steps, codes))
    codes, steps, values = codes[order], steps[order], values[order]
    bad = np.concatenate([one.bad for one in each])[order]
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (np.diff(codes) != 0) | (np.diff(steps) != 0)
    starts = np.flatnonzero(is_new)
    return Points(
        list(places_of),
        codes[starts],
        steps[starts],
        fold_over_ranks(fold, values, starts),
        np.logical_or.reduceat(bad, starts),
        np.ones(len(starts)),
    )


def fold_over_ranks(fold: str, values: Values, starts: Steps) -> Values:
    """Combine consecutive numbers of several ranks; NaN is ignored if there is a number."""
    with np.errstate(all="ignore"):
        if fold == "mean":
            known = ~np.isnan(values)
            return np.add.reduceat(np.where(known, values, 0.0), starts) / np.add.reduceat(known.astype(float), starts)
        low, high = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
        return low if fold == "min" else high if fold == "max" else high - low


def merged_numbers(statistic: str, numbers: Sequence[Values], counts: Sequence[Values]) -> Values:
    """Estimate a statistic of the whole from those of its shards; NaN is ignored if there is a number.

    For lowest and highest values it gives bounds: the shards need not reach them in the same step. `std` does not
    include the spread between the shards' means.
    """
    stacked = np.stack(numbers)
    known = ~np.isnan(stacked)
    nothing = ~known.any(axis=0)
    filled = np.where(known, stacked, 0.0)
    with np.errstate(all="ignore"):
        if statistic in ADDED:
            found = filled.sum(axis=0)
        elif statistic == "norm":
            found = np.sqrt(np.square(filled).sum(axis=0))
        elif statistic == "min":
            found = np.fmin.reduce(stacked)
        elif statistic in ("max", "absmax"):
            found = np.fmax.reduce(stacked)
        else:
            weights = np.where(known, np.stack(counts), 0.0)
            powers = np.square(filled) if statistic in SQUARED else filled
            found = (powers * weights).sum(axis=0) / weights.sum(axis=0)
            found = np.sqrt(found) if statistic in SQUARED else found
    return np.where(nothing, np.nan, found)


def folded_numbers(fold: str, numbers: Sequence[Values]) -> Values:
    """Like `fold_over_ranks`, for one table of numbers per rank."""
    return np.asarray(fold_over_ranks(fold, np.stack(numbers), np.zeros(1, np.int64))[0])
