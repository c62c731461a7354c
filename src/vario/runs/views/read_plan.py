"""What to read for a picture: the rows themselves, or the finest rollups that are read fast enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vario.runs.files.rollups import Cover, RollupFile, cover
from vario.runs.files.row_files import Part, Stream, Wanted
from vario.runs.files.store_reader import QuantityReader, Sessions

COARSER = 4
"""A level has about this many times the rows of the next."""

RAW_COST = 4
"""Reading a row and working out a statistic costs as much as so many rows of a rollup."""


@dataclass(frozen=True)
class Plan:
    """What to read for one quantity of one rank."""

    files: tuple[RollupFile, ...]
    row_files: tuple[tuple[Stream | Part, Wanted], ...]

    @property
    def num_buckets(self) -> int:
        """How many buckets the rollups have."""
        return sum(len(file.buckets) for file in self.files)

    @property
    def num_files(self) -> int:
        """The number of files to open."""
        return len(self.files) + len(self.row_files)

    @property
    def num_rollup_rows(self) -> int:
        """How many rows of rollups are read."""
        return sum(file.num_rows for file in self.files)

    @property
    def num_rows(self) -> int:
        """How many rows of rollups could be read for what it costs."""
        return self.num_rollup_rows + RAW_COST * sum(row_file.num_rows for row_file, _ in self.row_files)


@dataclass(frozen=True)
class View:
    """What exists of one quantity of one rank at one point in time."""

    rank: int
    files: Sequence[RollupFile]
    row_files: Sequence[tuple[Stream | Part, int | None]]
    sessions: Sessions
    statistic: str

    @property
    def levels(self) -> int:
        """The coarsest level there is; 0: no rollups."""
        return max((file.level for file in self.files), default=0)

    def plan(self, level: int, wanted: Wanted) -> Plan:
        """What to read for some steps, with rollups up to a level.

        Thinned parts have few rows: the finest rollups there are stand for them. Level 0: all rows that exist.
        """
        files = [file for file in self.files if file.level <= level]
        covered = cover(files, self.sessions)
        if not all(self._tells(file) for file in covered.files):
            covered = cover([file for file in files if self._tells(file)], self.sessions)
        if level > 0:
            covered = self._with_coarser(covered, level)
        row_files = [
            (row_file, wanted.at_most(limit))
            for row_file, limit in self.row_files
            if not covered.has(row_file.number, row_file.last_number) and wanted.at_most(limit).may_hold(row_file.span)
        ]
        return Plan(tuple(file for file in covered.files if wanted.may_hold(file.span)), tuple(row_files))

    def _with_coarser(self, covered: Cover, level: int) -> Cover:
        """Add coarser rollups for thinned parts whose fine ones are gone."""
        missing = [
            (row_file.number, row_file.last_number)
            for row_file, _ in self.row_files
            if row_file.merged is not None
            and row_file.merged.thinned
            and not covered.has(row_file.number, row_file.last_number)
        ]
        for coarser in range(level + 1, self.levels + 1 if missing else 0):
            here = cover([file for file in self.files if file.level == coarser and self._tells(file)], self.sessions)
            more = [
                file
                for file in here.files
                if any(file.range[0] <= last and first <= file.range[1] for first, last in missing)
                and not any(file.range[0] <= one.range[1] and one.range[0] <= file.range[1] for one in covered.files)
            ]
            covered = Cover((*covered.files, *more), (*covered.ranges, *(file.range for file in more)))
        return Cover(tuple(sorted(covered.files, key=lambda file: file.range)), tuple(sorted(covered.ranges)))

    def thinned_until(self, wanted: Wanted) -> int | None:
        """Return the last step in a range whose rows may have been dropped; None if all are there."""
        lasts = [
            min(last, limit - 1 if limit is not None else last, wanted.last if wanted.last is not None else last)
            for row_file, limit in self.row_files
            if row_file.merged is not None
            for first, last in row_file.merged.thinned
            if wanted.at_most(limit).may_hold((first, last))
        ]
        return max(lasts, default=None)

    def _tells(self, file: RollupFile) -> bool:
        """Whether a rollup says anything of the statistic: one of another package may have come later."""
        return f"{self.statistic}_high" in file.column_names


def view(rank: int, reader: QuantityReader, sessions: Sessions, statistic: str) -> View:
    """Return what exists of a quantity."""
    # The live stream and the parts first: a rollup that comes in between stands for parts that were seen.
    row_files = list(reader.shown(sessions))
    return View(rank, reader.rollups(), row_files, sessions, statistic)


def choose_level(views: Sequence[View], wanted: Wanted, num_buckets: int, most_rows: float, most_files: float) -> int:
    """The coarsest level that gives so many buckets, as far down as can be read in time; 0: the rows themselves."""
    level = max((one.levels for one in views), default=0)
    plans = [one.plan(level, wanted) for one in views]
    while level > 0 and plans[0].num_buckets < num_buckets:
        # Opening a file is needed to learn its size: skip levels that are four times as large as the rows themselves.
        if level > 1 and COARSER * sum(plan.num_rollup_rows for plan in plans) > 1.25 * most_rows:
            break
        finer = [one.plan(level - 1, wanted) for one in views]
        num_rows, num_files = (sum(getattr(plan, name) for plan in finer) for name in ("num_rows", "num_files"))
        if level == 1 and any(one.thinned_until(wanted) is not None for one in views):
            # Few rows are left of old steps, so their rollups are read as well.
            num_files += sum(plan.num_files for plan in plans)
        if num_rows > most_rows or num_files > most_files:
            break
        level, plans = level - 1, finer
    return level


def buckets_of(files: Sequence[RollupFile], wanted: Wanted) -> npt.NDArray[np.int64]:
    """First and last step of each bucket that has to do with some steps, in order."""
    spans = np.concatenate([np.zeros((0, 2), np.int64), *(file.buckets for file in files)])
    inside = np.ones(len(spans), np.bool_)
    if wanted.first is not None:
        inside &= spans[:, 1] >= wanted.first
    if wanted.last is not None:
        inside &= spans[:, 0] <= wanted.last
    return spans[inside][np.argsort(spans[inside][:, 1], kind="stable")]
