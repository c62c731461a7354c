"""The source of a picture's numbers: which ranks, and what exists of them now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vario.core.merged_parts import joined_spans
from vario.runs.files.row_files import Part, Stream, Wanted
from vario.runs.reader import RunReader
from vario.runs.views.merged_series import (
    FOLDS,
    Holders,
    Points,
    Steps,
    checked_rank,
    checked_statistic,
    merged_points,
    overlapping,
    read_points,
)
from vario.runs.views.read_plan import View, view

NEVER_NEGATIVE = frozenset({"norm", "rms", "std", "absmax", "count", "nans", "infs", "zeros"})
"""Statistics whose lowest value does not affect the largest magnitude."""


@dataclass(frozen=True)
class Source:
    """One statistic of a quantity, on one or more ranks."""

    run: RunReader
    quantity: str
    statistic: str
    fold: str | None
    """How the numbers of the ranks are combined; None: their rows are merged."""
    holders: tuple[Holders, ...]
    """One, or with a fold one per rank."""
    views: tuple[View, ...]
    """What exists of each rank that is read."""
    wanted: Wanted

    @property
    def is_signed(self) -> bool:
        """Whether numbers may be negative."""
        return self.statistic not in NEVER_NEGATIVE

    def targets(self) -> list[str]:
        """Return the targets of these ranks, in the order of their first observation."""
        seen: dict[str, tuple[int, int]] = {}
        sessions = self.run.sessions
        if len(self.views) == 1 and not self.holders[0].is_shared:
            return list(self.run.reader(self.views[0].rank, self.quantity).first_seen(sessions))
        for rank in self._ranks:
            found = self.run.reader(rank, self.quantity).first_seen(sessions)
            groups = self.groups(list(found), rank)
            for (target, when), group in zip(found.items(), groups, strict=True):
                if group >= 0:
                    seen[target] = min(when, seen.get(target, when))
        return sorted(seen, key=seen.__getitem__)

    def groups(self, names: Sequence[str], rank: int) -> Steps:
        """Return a group number per target: ranks with the same number are replicas; -1: no part of it."""
        if self.fold is not None:
            return np.full(len(names), rank)
        return np.array([self.holders[0].group(name, rank) for name in names], np.int64)

    def thinned_until(self) -> int | None:
        """Return the last wanted step at which some rank's rows may have been dropped; None if all are there."""
        return max((last for view in self.views if (last := view.thinned_until(self.wanted)) is not None), default=None)

    def thinned(self) -> tuple[tuple[int, int], ...]:
        """Return the wanted ranges of steps in which rows were dropped, on any rank."""
        spans = [
            span
            for view in self.views
            for row_file, limit in view.row_files
            if row_file.merged is not None
            for span in row_file.merged.thinned
            if self.wanted.at_most(limit).may_hold(span)
        ]
        return joined_spans(spans)

    def part(self, first: int | None, last: int | None) -> Source:
        """Return the same source, of fewer steps."""
        wanted = self.wanted
        firsts = [step for step in (wanted.first, first) if step is not None]
        lasts = [step for step in (wanted.last, last) if step is not None]
        return replace(self, wanted=Wanted(wanted.target, max(firsts, default=None), min(lasts, default=None)))

    def points(self) -> Iterator[Points]:
        """Yield the numbers from the rows themselves."""
        return read_points(self.views, self.quantity, self.statistic, self.holders, self.wanted, self.fold)

    def points_of(self, rank: int, row_files: Sequence[tuple[Stream | Part, Wanted]]) -> Iterator[Points]:
        """Yield the numbers of some files of a single rank."""
        alone = Holders(self.run, self.quantity, rank, alone=True)
        for together in overlapping([(rank, row_file, wanted) for row_file, wanted in row_files if row_file.num_rows]):
            if (found := merged_points(together, self.quantity, self.statistic, alone)) is not None:
                yield found

    @property
    def _ranks(self) -> list[int]:
        return [view.rank for view in self.views]


def open_source(run: RunReader, quantity: str, statistic: str, rank: int | str, wanted: Wanted) -> Source:
    """Find the source of numbers; raises ConfigError for a wrong name."""
    chosen = checked_rank(rank)
    statistic = checked_statistic(run, quantity, statistic)
    fold = str(rank) if rank in FOLDS else None
    if fold is None:
        holders = [Holders(run, quantity, chosen)]  # type: ignore[arg-type]  # not one of FOLDS
    else:
        holders = [
            Holders(run, quantity, number, alone=True) for number in run.ranks if quantity in run.quantities(number)
        ]
    sessions = run.sessions
    ranks = dict.fromkeys(number for one in holders for number in one.ranks)
    views = tuple(view(number, run.reader(number, quantity), sessions, statistic) for number in ranks)
    return Source(run, quantity, statistic, fold, tuple(holders), views, wanted)
