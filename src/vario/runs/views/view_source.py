"""Where the numbers of a picture come from: which ranks, and what there is of them at this moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

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
"""Statistics whose lowest says nothing about the largest magnitude."""


@dataclass(frozen=True)
class Source:
    """A statistic of a quantity, of one rank or several."""

    run: RunReader
    quantity: str
    statistic: str
    fold: str | None
    """What is made of the number of each rank; None: their rows are merged."""
    holders: tuple[Holders, ...]
    """One, or with a fold one for each rank."""
    views: tuple[View, ...]
    """What there is of each rank that is read."""
    wanted: Wanted

    @property
    def is_signed(self) -> bool:
        """Whether numbers may be negative."""
        return self.statistic not in NEVER_NEGATIVE

    def targets(self) -> list[str]:
        """The targets that these ranks have, in the order they were first observed."""
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
        """For each target, ranks of one number hold the same; -1: this one has no part in it."""
        if self.fold is not None:
            return np.full(len(names), rank)
        return np.array([self.holders[0].group(name, rank) for name in names], np.int64)

    def points(self) -> Iterator[Points]:
        """The numbers, from the rows themselves."""
        return read_points(self.views, self.quantity, self.statistic, self.holders, self.wanted, self.fold)

    def points_of(self, rank: int, pieces: Sequence[tuple[Stream | Part, Wanted]]) -> Iterator[Points]:
        """The numbers of some pieces of one rank, by itself."""
        alone = Holders(self.run, self.quantity, rank, alone=True)
        for together in overlapping([(rank, piece, wanted) for piece, wanted in pieces if piece.num_rows]):
            if (found := merged_points(together, self.quantity, self.statistic, alone)) is not None:
                yield found

    @property
    def _ranks(self) -> list[int]:
        return [view.rank for view in self.views]


def open_source(run: RunReader, quantity: str, statistic: str, rank: int | str, wanted: Wanted) -> Source:
    """Find where numbers come from; a ConfigError says which name is wrong."""
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
