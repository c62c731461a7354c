"""What to read for a picture: the rows themselves, or the finest outlines that are read fast enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vario.runs.files.rollups import OutlineFile, cover
from vario.runs.files.row_files import Part, Stream, Wanted
from vario.runs.files.store_reader import QuantityReader, Sessions

COARSER = 4
"""A level has about so many times the rows of the next."""

RAW_COST = 4
"""Reading a row and working out a statistic costs as much as so many rows of an outline."""


@dataclass(frozen=True)
class Plan:
    """What to read of one quantity of one rank."""

    files: tuple[OutlineFile, ...]
    pieces: tuple[tuple[Stream | Part, Wanted], ...]

    @property
    def num_stretches(self) -> int:
        """How many stretches the outlines have."""
        return sum(len(file.stretches) for file in self.files)

    @property
    def num_files(self) -> int:
        """How many files are opened."""
        return len(self.files) + len(self.pieces)

    @property
    def num_outlined(self) -> int:
        """How many rows of outlines are read."""
        return sum(file.num_rows for file in self.files)

    @property
    def num_rows(self) -> int:
        """How many rows of outlines could be read for what it costs."""
        return self.num_outlined + RAW_COST * sum(piece.num_rows for piece, _ in self.pieces)


@dataclass(frozen=True)
class View:
    """What there is of one quantity of one rank at one moment."""

    rank: int
    files: Sequence[OutlineFile]
    pieces: Sequence[tuple[Stream | Part, int | None]]
    sessions: Sessions
    statistic: str

    @property
    def levels(self) -> int:
        """The coarsest level there is; 0: no outlines."""
        return max((file.level for file in self.files), default=0)

    def plan(self, level: int, wanted: Wanted) -> Plan:
        """What to read for some steps, with outlines up to a level."""
        files = [file for file in self.files if file.level <= level]
        covered = cover(files, self.sessions)
        if not all(self._tells(file) for file in covered.files):
            covered = cover([file for file in files if self._tells(file)], self.sessions)
        pieces = [
            (piece, wanted.at_most(limit))
            for piece, limit in self.pieces
            if not covered.has(piece.number) and wanted.at_most(limit).may_hold(piece.span)
        ]
        return Plan(tuple(file for file in covered.files if wanted.may_hold(file.span)), tuple(pieces))

    def _tells(self, file: OutlineFile) -> bool:
        """Whether an outline says anything of the statistic: one of another package may have come later."""
        return f"{self.statistic}_high" in file.column_names


def view(rank: int, reader: QuantityReader, sessions: Sessions, statistic: str) -> View:
    """What there is of a quantity."""
    # The live stream and the parts first: an outline that comes in between stands for parts that were seen.
    pieces = list(reader.shown(sessions))
    return View(rank, reader.outlines(), pieces, sessions, statistic)


def choose_level(views: Sequence[View], wanted: Wanted, num_stretches: int, most_rows: float, most_files: float) -> int:
    """The coarsest level that gives so many stretches, as far down as can be read in time; 0: the rows themselves."""
    level = max((one.levels for one in views), default=0)
    plans = [one.plan(level, wanted) for one in views]
    while level > 0 and plans[0].num_stretches < num_stretches:
        # Files are opened to learn their size: not those of a level that is four times what is read as it is.
        if level > 1 and COARSER * sum(plan.num_outlined for plan in plans) > 1.25 * most_rows:
            break
        finer = [one.plan(level - 1, wanted) for one in views]
        num_rows, num_files = (sum(getattr(plan, name) for plan in finer) for name in ("num_rows", "num_files"))
        if num_rows > most_rows or num_files > most_files:
            break
        level, plans = level - 1, finer
    return level


def stretches_of(files: Sequence[OutlineFile], wanted: Wanted) -> npt.NDArray[np.int64]:
    """First and last step of each stretch that has to do with some steps, in order."""
    spans = np.concatenate([np.zeros((0, 2), np.int64), *(file.stretches for file in files)])
    inside = np.ones(len(spans), np.bool_)
    if wanted.first is not None:
        inside &= spans[:, 1] >= wanted.first
    if wanted.last is not None:
        inside &= spans[:, 0] <= wanted.last
    return spans[inside][np.argsort(spans[inside][:, 1], kind="stable")]
