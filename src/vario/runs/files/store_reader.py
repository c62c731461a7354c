"""Reads one quantity of one rank: Parquet parts, parts that are still streams, and the live stream, as one table.

Works while the rank is writing. The live stream is read first and the list of parts after it, so rows that move from
one to the other in between are seen once: a live stream whose number exists as a part is ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vario.core.errors import RunCorrupt
from vario.core.quantities import is_quantity
from vario.core.records import COLUMNS, Table
from vario.core.run_files import entries_of, list_names
from vario.core.run_files.columns import type_of
from vario.core.run_format import LIVE, PART, part_name
from vario.runs.files.arrays import numbers
from vario.runs.files.budget import Budget, check_num_names
from vario.runs.files.rollups import OutlineFile, Outlines, cover, settled
from vario.runs.files.row_files import EVERYTHING, PART_DEPTH, Footers, Part, Stream, Wanted, read_stream

log = logging.getLogger("vario")

RANK_DEPTH = 1
"""How far below the run's folder that of a rank lies."""

When = tuple[int, int]
"""A step and the order within it."""

LAST = 2**31
"""Stands for the order of rows that have none: plain numbers come after everything observed in their step."""

Sessions = Sequence[Mapping[str, Any]]


class QuantityReader:
    """All rows of one quantity of one rank."""

    def __init__(self, rank_folder: Path, quantity: str) -> None:
        self._folder = rank_folder / quantity
        self._live = rank_folder / f"{quantity}{LIVE}"
        self._live_read: tuple[tuple[int, int, int], Stream | None] | None = None
        self._footers = Footers()
        self._parts: dict[int, Part] = {}
        self._outlines = Outlines(rank_folder, quantity)
        self._heard: set[str] = set()
        """The outlines whose word on parts was taken."""
        self._seen: dict[tuple[str | int, int | None], dict[str, When]] = {}
        self._seen_together: tuple[Collection[tuple[str | int, int | None]], Mapping[str, When]] = (frozenset(), {})
        self._times: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]] = {}
        self._steps: dict[tuple[int, int | None], npt.NDArray[np.int64]] = {}

    def outlines(self) -> list[OutlineFile]:
        """The outlines that are there now; what they tell of parts is kept."""
        files = self._outlines.files()
        coarsest = sorted(files, key=lambda file: (-file.level, file.range))
        for at, file in enumerate(coarsest):
            # A coarser one tells the same.
            if file.path.name in self._heard or any(other.stands_for(file) for other in coarsest[:at]):
                continue
            self._heard.add(file.path.name)
            for number, first, last, num_rows in file.parts:
                part = self._parts.get(number)
                if part is None:
                    part = self._parts[number] = self._part(number)
                if part.told is None:
                    part.told = file.session, (first, last), num_rows
        return files

    def pieces(self) -> list[Stream | Part]:
        """Everything that is there now, oldest first."""
        live = self._read_live()
        pieces = list(self.closed_pieces(()))
        if live is not None and all(live.number != piece.number for piece in pieces):
            pieces.append(live)
        return pieces

    def _read_live(self) -> Stream | None:
        try:
            status = self._live.lstat()
        except (FileNotFoundError, NotADirectoryError):
            self._live_read = None
            return None
        # What comes after this look is read with the next one.
        stamp = status.st_ino, status.st_size, status.st_mtime_ns
        known = self._live_read
        if known is None or known[0] != stamp:
            known = self._live_read = stamp, read_stream(self._live)
        return known[1]

    def closed_pieces(self, known: Collection[int]) -> Iterator[Stream | Part]:
        """The closed parts that are not among the known ones, oldest first."""
        found: dict[int, set[str]] = {}
        for name in list_names(self._folder, PART_DEPTH - 1):
            if (match := PART.fullmatch(name)) and int(match[1]) not in known:
                found.setdefault(int(match[1]), set()).add(match[2])
        for number in sorted(found):
            yield self._piece(number, found[number])

    def read(
        self,
        columns: Sequence[str],
        sessions: Sessions,
        target: str | None = None,
        step: int | None = None,
        first: int | None = None,
        budget: Budget | None = None,
    ) -> Any:
        """Chosen columns of the rows of one target, at or from one step or all, without those a resume took back.

        An answer that is made of several readers' rows shares one `budget`.
        """
        wanted = Wanted(target, first if step is None else step, step)
        tables = []
        budget = budget or Budget()
        for piece, limit in self.shown(sessions):
            if not wanted.by_step or wanted.may_hold(piece.span):
                tables.append(piece.read(columns, wanted.at_most(limit)))
                budget.take(piece, tables[-1].nbytes, tables[-1].num_rows)
        return one_table(tables, columns)

    def batches(self, columns: Sequence[str], sessions: Sessions) -> Iterator[Any]:
        """The rows of one file after the other, each within what a file may come to, without those taken back."""
        for piece, limit in self.shown(sessions):
            table = piece.read(columns, EVERYTHING.at_most(limit))
            if table.num_rows:
                yield one_table([table], columns)

    def shown(self, sessions: Sessions) -> Iterator[tuple[Stream | Part, int | None]]:
        """Each piece and the step from which its rows were taken back by a later session."""
        self.outlines()
        for piece in self.pieces():
            yield piece, taken_back_from(piece.session, sessions)

    def suspects(self, sessions: Sessions) -> Iterator[tuple[Stream | Part, int | None]]:
        """As `shown`, without the parts whose outlines say that nothing in them is a NaN or an Inf."""
        clean = cover([file for file in self.outlines() if not file.may_be_bad], sessions)
        return ((piece, limit) for piece, limit in self.shown(sessions) if not clean.has(piece.number))

    def newest_step(self, sessions: Sessions) -> int | None:
        """The newest step that was recorded and not taken back, from what files tell of themselves."""
        newest: int | None = None
        for piece, limit in self.shown(sessions):
            span = piece.span
            if span is not None and (limit is None or span[0] < limit):
                last = span[1] if limit is None else min(span[1], limit - 1)
                newest = last if newest is None else max(newest, last)
        return newest

    def steps(self, sessions: Sessions) -> npt.NDArray[np.int64]:
        """The steps that were recorded and not taken back, in order."""
        covered = cover(self.outlines(), sessions)
        found = [file.steps for file in covered.files]
        budget = Budget()
        for piece, limit in self.shown(sessions):
            if covered.has(piece.number):
                continue
            key = (piece.number, limit)
            if key not in self._steps or isinstance(piece, Stream):
                self._steps[key] = np.unique(numbers(piece.read(["step"], EVERYTHING.at_most(limit)).column("step")))
            found.append(self._steps[key])
            budget.take(piece, self._steps[key].nbytes)
        return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))

    def times(self, sessions: Sessions, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """When these steps ended, in Unix seconds, as plain numbers tell; NaN where they do not."""
        found = np.full(len(steps), np.nan)
        for piece, limit in self.shown(sessions):
            wanted = EVERYTHING.at_most(limit)
            span = piece.span
            if span is None or not len(steps) or steps[-1] < span[0] or steps[0] > span[1]:
                continue
            if piece.number not in self._times or isinstance(piece, Stream):
                table = piece.read(["step", "time"])
                known, rows = np.unique(numbers(table.column("step")), return_index=True)
                self._times[piece.number] = known, numbers(table.column("time"))[rows]
            known, times = self._times[piece.number]
            if not len(known):
                continue
            at = np.minimum(np.searchsorted(known, steps), len(known) - 1)
            is_known = (known[at] == steps) & (True if wanted.last is None else steps <= wanted.last)
            found[is_known] = times[at[is_known]]
        return found

    def first_seen(self, sessions: Sessions) -> Mapping[str, When]:
        """Each target with the step and order of its first row, the first first."""
        return settled(lambda: self._first_seen(sessions))

    def _first_seen(self, sessions: Sessions) -> Mapping[str, When]:
        covered = cover(self.outlines(), sessions)
        open_pieces = [(piece, limit) for piece, limit in self.shown(sessions) if not covered.has(piece.number)]
        closed: dict[tuple[str | int, int | None], OutlineFile | Part] = {(f.path.name, None): f for f in covered.files}
        closed |= {(piece.number, limit): piece for piece, limit in open_pieces if isinstance(piece, Part)}
        if self._seen_together[0] != closed.keys():
            # What is closed stays as it is: only what is new among it is read.
            self._seen = {key: self._seen.get(key) or _seen_in(one, key[1]) for key, one in closed.items()}
            check_num_names(self._folder, sum(map(len, self._seen.values())))
            self._seen_together = frozenset(closed), _earliest(self._seen.values())
        seen = self._seen_together[1]
        for piece, limit in open_pieces:
            if isinstance(piece, Stream):
                found = _seen_in(piece, limit)
                if any(target not in seen or when < seen[target] for target, when in found.items()):
                    seen = _earliest([seen, found])
        return seen

    def _piece(self, number: int, kinds: set[str]) -> Stream | Part:
        if "parquet" not in kinds:
            stream = read_stream(self._folder / part_name(number, "arrow"))
            if stream is not None:
                return stream
            # Compacted since we listed the folder.
        if number not in self._parts:
            self._parts[number] = self._part(number)
        return self._parts[number]

    def _part(self, number: int) -> Part:
        return Part(self._folder / part_name(number, "parquet"), number, self._footers)


def taken_back_from(session: int, sessions: Sessions) -> int | None:
    """The step from which what a session recorded was taken back by later ones; None: nothing was."""
    return min((int(later["first_step"]) for later in sessions[session + 1 :]), default=None)


def one_table(tables: Sequence[Any], columns: Sequence[str]) -> Any:
    """Tables of several pieces as one, with one dictionary."""
    tables = [table.replace_schema_metadata(None) for table in tables]
    whole = pa.concat_tables(tables) if tables else pa.table({name: pa.array([], type_of(name)) for name in columns})
    return whole.unify_dictionaries().combine_chunks()


def _seen_in(one: OutlineFile | Part | Stream, limit: int | None) -> dict[str, When]:
    """Each target of a file with the step and order of its first row."""
    step = "first_step" if isinstance(one, OutlineFile) else "step"
    columns = [step, "target", *(["order"] if "order" in one.column_names else [])]
    table = one.read(columns) if isinstance(one, OutlineFile) else one.read(columns, EVERYTHING.at_most(limit))
    table = table.unify_dictionaries().combine_chunks()
    if not table.num_rows:
        return {}
    steps = numbers(table.column(step))
    order = numbers(table.column("order")) if "order" in table.column_names else np.full(len(steps), LAST)
    target = table.column("target").chunk(0)
    names = target.dictionary.to_pylist()
    positions = np.lexsort((order, steps))
    codes, first = np.unique(numbers(target.indices)[positions], return_index=True)
    rows = positions[first]
    found = zip(codes.tolist(), steps[rows].tolist(), order[rows].tolist(), strict=True)
    return {names[code]: (step, order) for code, step, order in found}


def _earliest(all_seen: Iterable[Mapping[str, When]]) -> dict[str, When]:
    """Of each target the first time it was seen, in that order."""
    seen: dict[str, When] = {}
    for found in all_seen:
        for target, when in found.items():
            if target not in seen or when < seen[target]:
                seen[target] = when
    return dict(sorted(seen.items(), key=lambda item: item[1]))


def quantities(rank_folder: Path) -> list[str]:
    """Names of the quantities a rank has recorded; what no quantity can be called is passed over."""
    names = list_names(rank_folder, RANK_DEPTH)
    live = {name.removesuffix(LIVE) for name in names if name.endswith(LIVE)}
    found = {name for name in names if is_quantity(name) and name not in live and _has_part(rank_folder / name)}
    return sorted(found.union(filter(is_quantity, live)))


def summaries(table: Any) -> Table:
    """Rows as Summaries; NaN stands where nothing was recorded."""
    # By column: that is how they are read, and how statistics look at them.
    rows = np.empty((table.num_rows, len(COLUMNS)), order="F")
    for position, name in enumerate(COLUMNS):
        rows[:, position] = numbers(table.column(name)) if name in table.column_names else np.nan
    return rows


def _has_part(folder: Path) -> bool:
    """Whether a folder has a part; of thousands the first one found will do."""
    try:
        with entries_of(folder, PART_DEPTH - 1) as entries:
            return any(PART.fullmatch(entry.name) for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except RunCorrupt as error:
        _warn_once(str(error))
        return False


@cache
def _warn_once(text: str) -> None:
    log.warning("left out: %s", text)
