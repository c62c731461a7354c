"""Rollups as they lie beside the parts of a run: few rows that stand for many, coarser from level to level."""

from __future__ import annotations

import json
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from vario.core.errors import RunCorrupt
from vario.core.merged_parts import joined_spans
from vario.core.run_files import list_names
from vario.core.run_files.columns import MOST_STEP, check_rows, check_schema
from vario.core.run_files.parquet import read_footer, read_groups
from vario.core.run_files.streams import NOT_WHOLE
from vario.core.run_format import ROLLUPS
from vario.runs.files.new_names import with_new_names
from vario.runs.files.row_files import Span, group_ranges, groups_of, session_of

NAME = re.compile(r"([0-9]{1,2})-([0-9]{6,12})-([0-9]{6,12})\.parquet")
DEPTH = 4
"""How far below the run's folder they lie."""
MOST_STEPS = 1 << 26
"""So many steps one file may tell of."""
ATTEMPTS = 5
"""A file that vanishes while we look has become part of a larger one, which the next look finds."""

_LARGEST = sys.maxsize
Found = TypeVar("Found")


@dataclass(frozen=True)
class _Told:
    """What a file says of itself."""

    session: int
    parts: tuple[tuple[int, int, int, int], ...]
    buckets: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]
    footer: Any


@dataclass(frozen=True)
class RollupFile:
    """One file of rollups; what it says of itself is read when somebody asks, and once."""

    path: Path
    level: int
    range: Span
    """Numbers of the first and last part it stands for."""

    @cached_property
    def _told(self) -> _Told:
        return _read_told(self.path)

    @property
    def session(self) -> int:
        """Which session wrote the parts."""
        return self._told.session

    @property
    def parts(self) -> tuple[tuple[int, int, int, int], ...]:
        """Of each part: its number, first and last step, and rows."""
        return self._told.parts

    @property
    def buckets(self) -> npt.NDArray[np.int64]:
        """First and last step of each."""
        return self._told.buckets

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """The steps that were recorded."""
        return self._told.steps

    @property
    def footer(self) -> Any:
        """What Parquet says of the file."""
        return self._told.footer

    def stands_for(self, other: RollupFile) -> bool:
        """Whether it stands for all parts that the other one does."""
        return self.range[0] <= other.range[0] and other.range[1] <= self.range[1]

    @property
    def span(self) -> Span:
        """Its first and last step."""
        return int(self.buckets[0, 0]), int(self.buckets[:, 1].max())

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.footer.num_rows)

    @property
    def column_names(self) -> list[str]:
        """All columns."""
        return list(self.footer.schema.names)

    @property
    def may_be_bad(self) -> bool:
        """Whether any row may count a NaN or an Inf, as far as the footer tells."""
        return any(found is None or found[1] > 0 for found in group_ranges(self.footer, "bad"))

    def read(self, columns: Sequence[str], target: str | None = None) -> Any:
        """Chosen columns, as far as it has them, of all rows or those of one target."""
        quantity = self.path.parent.name
        every = range(self.footer.num_row_groups)
        groups = list(every) if target is None else groups_of(self.footer, quantity, target)
        known = self.column_names
        chosen = [name for name in columns if name in known]
        try:
            table = read_groups(self.path, DEPTH, self.footer, groups, chosen, use_threads=len(groups) > 1)
            check_rows(table)
        except (RunCorrupt, ValueError) as error:
            raise _unreadable(self.path, error) from error
        return with_new_names(quantity, table)


def settled(look: Callable[[], Found]) -> Found:
    """What a look at a run finds, looked again where a file has gone meanwhile."""
    for _ in range(ATTEMPTS):
        try:
            return look()
        except FileNotFoundError:
            continue
    return look()


class Rollups:
    """The rollups of one quantity of one rank."""

    def __init__(self, rank_folder: Path, quantity: str) -> None:
        self._folder = rank_folder / ROLLUPS / quantity
        self._known: dict[str, RollupFile] = {}

    def files(self) -> list[RollupFile]:
        """Those that are there now, in the order of their parts; none that a larger one of its level stands for."""
        return settled(self._files)

    def _files(self) -> list[RollupFile]:
        names = [name for name in list_names(self._folder, DEPTH - 1) if NAME.fullmatch(name)]
        self._known = {name: self._known.get(name) or _named(self._folder / name) for name in names}
        files = sorted(self._known.values(), key=lambda file: (file.level, file.range[0], -file.range[1]))
        kept: list[RollupFile] = []
        for file in files:
            # The larger of two that begin alike comes first, and one inside another begins after it.
            if not (kept and kept[-1].level == file.level and file.range[1] <= kept[-1].range[1]):
                kept.append(file)
        return kept


@dataclass(frozen=True)
class Cover:
    """Rollups that stand for parts without standing for one twice."""

    files: tuple[RollupFile, ...]
    """In the order of their parts."""
    ranges: tuple[Span, ...]
    """Parts they stand for, and parts that were taken back altogether, in order."""

    def has(self, part: int, last: int | None = None) -> bool:
        """Whether a part need not be read; `last`: the last of several that are in one file."""
        at = bisect_right(self._joined, (part, _LARGEST)) - 1
        return at >= 0 and (part if last is None else last) <= self._joined[at][1]

    @cached_property
    def _joined(self) -> tuple[Span, ...]:
        return joined_spans(self.ranges)


def cover(files: Sequence[RollupFile], sessions: Sequence[Mapping[str, Any]]) -> Cover:
    """The coarsest of some rollups; where a session was taken back midway, finer ones and parts show it."""
    chosen: list[RollupFile] = []
    ranges: list[Span] = []
    for file in sorted(files, key=lambda one: (-one.level, one.range)):
        if any(first <= file.range[0] and file.range[1] <= last for first, last in ranges):
            continue
        limit = min((int(later["first_step"]) for later in sessions[file.session + 1 :]), default=None)
        if limit is None or file.span[1] < limit:
            chosen.append(file)
            ranges.append(file.range)
        elif file.span[0] >= limit:
            ranges.append(file.range)
    return Cover(tuple(sorted(chosen, key=lambda file: file.range)), tuple(sorted(ranges)))


def _named(path: Path) -> RollupFile:
    match = NAME.fullmatch(path.name)
    assert match is not None
    return RollupFile(path, int(match[1]), (int(match[2]), int(match[3])))


def _read_told(path: Path) -> _Told:
    try:
        footer = read_footer(path, DEPTH)
        schema = footer.schema.to_arrow_schema()
        check_schema(schema, ("target", "first_step", "last_step", "bad"))
        check_schema(schema, (name for name in schema.names if name.endswith(("_low", "_high", "_last", "_mean"))))
        metadata = footer.metadata or {}
        parts, buckets, steps = (
            json.loads(metadata[key]) for key in (b"vario.parts", b"vario.stretches", b"vario.steps")
        )
        return _Told(
            session_of(path, metadata),
            tuple((int(number), int(first), int(last), int(num_rows)) for number, first, last, num_rows in parts),
            _checked(np.array(buckets, np.int64).reshape(-1, 2)),
            _checked(all_steps(steps)),
            footer,
        )
    except (RunCorrupt, RecursionError, *NOT_WHOLE) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise _unreadable(path, error) from error


def all_steps(runs: Sequence[tuple[int, int, int]]) -> npt.NDArray[np.int64]:
    """Return the steps of these even runs; raises ValueError for more than a run has."""
    if not all(first >= 0 and every > 0 and 0 < num <= MOST_STEPS for first, every, num in runs):
        raise ValueError("steps that cannot be")
    if sum(num for _, _, num in runs) > MOST_STEPS or any(
        first + every * num > MOST_STEP for first, every, num in runs
    ):
        raise ValueError("more steps than a run has")
    return np.concatenate([np.zeros(0, np.int64), *(first + every * np.arange(num) for first, every, num in runs)])


def _checked(steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if not steps.size or steps.min() < 0 or steps.max() > MOST_STEP:
        raise ValueError("no steps, or some that cannot be")
    return steps


def _unreadable(path: Path, error: Exception) -> RunCorrupt:
    text = str(error).removeprefix(f"{path}: ").removeprefix("not readable as Parquet: ")
    return RunCorrupt(f"{path}: not readable as a rollup: {text}. It may be deleted, unless rows were thinned.")
