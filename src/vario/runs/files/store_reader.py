"""Reads one quantity of one rank: Parquet parts, parts that are still streams, and the live stream, as one table.

Works while the rank is writing. It reads the live stream first and then the list of parts, so rows that move from one
to the other in between are read once: a live stream whose number exists as a part is ignored.
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

from vario.core.elements.bins import DETAIL
from vario.core.errors import RunCorrupt
from vario.core.merged_parts import MergedPart, joined_spans
from vario.core.old_names import QUANTITIES, stored_name
from vario.core.quantities import is_quantity
from vario.core.records import COLUMNS, Table
from vario.core.run_files import entries_of, list_names
from vario.core.run_files.columns import type_of
from vario.core.run_format import LIVE, PART, current_parts, part_name
from vario.runs.files.arrays import numbers
from vario.runs.files.budget import Budget, check_num_names
from vario.runs.files.listing_cache import cached_listing
from vario.runs.files.merged_parts import MergedParts, lacking, read_merged
from vario.runs.files.rollups import RollupFile, Rollups, cover, settled
from vario.runs.files.row_files import EVERYTHING, PART_DEPTH, Footers, Part, Span, Stream, Wanted, read_stream

log = logging.getLogger("vario")

RANK_DEPTH = 1
"""How deep below the run's folder a rank's folder is."""

When = tuple[int, int]
"""A step and the order within it."""
Numbers = tuple[int, int]
"""The first and last number of the parts in a file."""

LAST = 2**31
"""The order of rows that have none: plain numbers come after everything observed in their step."""

Sessions = Sequence[Mapping[str, Any]]


class QuantityReader:
    """All rows of one quantity of one rank."""

    def __init__(self, rank_folder: Path, quantity: str) -> None:
        stored = stored_name(rank_folder, quantity)
        self._folder = rank_folder / stored
        self._live = rank_folder / f"{stored}{LIVE}"
        self._live_read: tuple[tuple[int, int, int], Stream | None] | None = None
        self._footers = Footers()
        self._parts: dict[Numbers, Part] = {}
        self._merged = MergedParts(self._folder)
        self._rollups = Rollups(rank_folder, stored)
        self._heard: set[str] = set()
        """The rollups whose word on parts was taken."""
        self._seen: dict[tuple[str | Numbers, int | None], dict[str, When]] = {}
        self._seen_together: tuple[Collection[tuple[str | Numbers, int | None]], Mapping[str, When]] = (frozenset(), {})
        self._times: dict[Numbers, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]] = {}
        self._steps: dict[tuple[Numbers, int | None], npt.NDArray[np.int64]] = {}

    def rollups(self) -> list[RollupFile]:
        """The rollups that are there now; what they tell of parts is kept."""
        files = self._rollups.files()
        coarsest = sorted(files, key=lambda file: (-file.level, file.range))
        for at, file in enumerate(coarsest):
            # A coarser one tells the same.
            if file.path.name in self._heard or any(other.stands_for(file) for other in coarsest[:at]):
                continue
            self._heard.add(file.path.name)
            for number, first, last, num_rows in file.parts:
                part = self._part((number, number))
                if part.told is None:
                    part.told = file.session, (first, last), num_rows
        return files

    def row_files(self) -> list[Stream | Part]:
        """Return all files that exist now, oldest first."""
        live = self._read_live()
        row_files = list(self.closed_row_files(()))
        if live is not None and all(not one.number <= live.number <= one.last_number for one in row_files):
            row_files.append(live)
        return row_files

    def _read_live(self) -> Stream | None:
        try:
            status = self._live.lstat()
        except (FileNotFoundError, NotADirectoryError):
            self._live_read = None
            return None
        # Anything newer is read next time.
        stamp = status.st_ino, status.st_size, status.st_mtime_ns
        known = self._live_read
        if known is None or known[0] != stamp:
            known = self._live_read = stamp, read_stream(self._live)
        return known[1]

    def closed_row_files(self, known: Collection[int]) -> Iterator[Stream | Part]:
        """Return the closed parts that are not known yet, oldest first; none whose rows are in a larger one.

        Of a larger one, some parts may be known.
        """
        merged = self._merged.read()
        for first, last, name in current_parts(list_names(self._folder, PART_DEPTH - 1)):
            if first not in known or last not in known:
                yield self._row_file((first, last), name, merged)

    def thinned(self, sessions: Sessions) -> list[Span]:
        """Return the ranges of steps in which rows were dropped as they grew old."""
        spans = []
        for row_file, limit in self.shown(sessions):
            for first, last in row_file.merged.thinned if row_file.merged is not None else ():
                if limit is None or first < limit:
                    spans.append((first, last if limit is None else min(last, limit - 1)))
        return list(joined_spans(spans))

    def read(
        self,
        columns: Sequence[str],
        sessions: Sessions,
        target: str | None = None,
        step: int | None = None,
        first: int | None = None,
        budget: Budget | None = None,
    ) -> Any:
        """Read the selected columns and rows, without those a resume discarded.

        Readers whose rows go into one result share a `budget`.
        """
        wanted = Wanted(target, first if step is None else step, step)
        budget = budget or Budget()
        return settled(lambda: self._read(columns, sessions, wanted, budget))

    def _read(self, columns: Sequence[str], sessions: Sessions, wanted: Wanted, budget: Budget) -> Any:
        tables = []
        for row_file, limit in self.shown(sessions):
            if not wanted.by_step or wanted.may_hold(row_file.span):
                tables.append(_read(row_file, columns, wanted.at_most(limit)))
                budget.take(row_file, tables[-1].nbytes, tables[-1].num_rows)
        return one_table(tables, columns)

    def batches(self, columns: Sequence[str], sessions: Sessions) -> Iterator[Any]:
        """Yield the rows file by file, each within the limit for one file, without those a resume discarded."""
        for row_file, limit in self.shown(sessions):
            table = row_file.read(columns, EVERYTHING.at_most(limit))
            if table.num_rows:
                yield one_table([table], columns)

    def shown(self, sessions: Sessions) -> Iterator[tuple[Stream | Part, int | None]]:
        """Yield each file and the step from which a later session discarded its rows."""
        self.rollups()
        for row_file in self.row_files():
            yield row_file, taken_back_from(row_file.session, sessions)

    def suspects(self, sessions: Sessions) -> Iterator[tuple[Stream | Part, int | None]]:
        """As `shown`, without the parts whose rollups say that nothing in them is a NaN or an Inf."""
        clean = cover([file for file in self.rollups() if not file.may_be_bad], sessions)
        return ((row_file, limit) for row_file, limit in self.shown(sessions) if not clean.has(*_numbers(row_file)))

    def lacks(self, sessions: Sessions, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return of which of these steps rows may have been dropped as they grew old."""
        return lacking([one.merged for one, _ in self.shown(sessions) if one.merged is not None], steps)

    def newest_step(self, sessions: Sessions) -> int | None:
        """Return the newest step that was recorded and not discarded, from the files' metadata."""
        span = self.span(sessions)
        return None if span is None else span[1]

    def span(self, sessions: Sessions) -> Span | None:
        """Return the first and the newest step that were recorded and not discarded, from the files' metadata."""
        found: Span | None = None
        for row_file, limit in self.shown(sessions):
            span = row_file.span
            if span is not None and (limit is None or span[0] < limit):
                last = span[1] if limit is None else min(span[1], limit - 1)
                found = (span[0], last) if found is None else (min(found[0], span[0]), max(found[1], last))
        return found

    def steps(self, sessions: Sessions) -> npt.NDArray[np.int64]:
        """Return the steps that were recorded and not discarded, in order."""
        return settled(lambda: self._all_steps(sessions))

    def _all_steps(self, sessions: Sessions) -> npt.NDArray[np.int64]:
        covered = cover(self.rollups(), sessions)
        found = [file.steps for file in covered.files]
        budget = Budget()
        for row_file, limit in self.shown(sessions):
            if covered.has(*_numbers(row_file)):
                continue
            key = (_numbers(row_file), limit)
            if (known := self._steps.get(key)) is None:
                known = np.unique(numbers(row_file.read(["step"], EVERYTHING.at_most(limit)).column("step")))
                if isinstance(row_file, Part):  # a stream has more rows when it is one
                    self._steps[key] = known
            found.append(known)
            budget.take(row_file, known.nbytes)
        return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))

    def times(self, sessions: Sessions, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return when these steps ended, in Unix seconds, from the plain numbers; NaN if unknown."""
        return settled(lambda: self._all_times(sessions, steps))

    def _all_times(self, sessions: Sessions, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        found = np.full(len(steps), np.nan)
        for row_file, limit in self.shown(sessions):
            wanted = EVERYTHING.at_most(limit)
            span = row_file.span
            if span is None or not len(steps) or steps[-1] < span[0] or steps[0] > span[1]:
                continue
            numbers_of = _numbers(row_file)
            if (kept := self._times.get(numbers_of)) is None:
                table = row_file.read(["step", "time"])
                firsts, rows = np.unique(numbers(table.column("step")), return_index=True)
                kept = firsts, numbers(table.column("time"))[rows]
                if isinstance(row_file, Part):
                    self._times[numbers_of] = kept
            known, times = kept
            if not len(known):
                continue
            at = np.minimum(np.searchsorted(known, steps), len(known) - 1)
            is_known = (known[at] == steps) & (True if wanted.last is None else steps <= wanted.last)
            found[is_known] = times[at[is_known]]
        return found

    def first_seen(self, sessions: Sessions) -> Mapping[str, When]:
        """Return each target with the step and order of its first row, earliest first."""
        return settled(lambda: self._first_seen(sessions))

    def _first_seen(self, sessions: Sessions) -> Mapping[str, When]:
        covered = cover(self.rollups(), sessions)
        open_files = [
            (row_file, limit) for row_file, limit in self.shown(sessions) if not covered.has(*_numbers(row_file))
        ]
        closed: dict[tuple[str | Numbers, int | None], RollupFile | Part] = {
            (f.path.name, None): f for f in covered.files
        }
        closed |= {
            (_numbers(row_file), limit): row_file for row_file, limit in open_files if isinstance(row_file, Part)
        }
        if self._seen_together[0] != closed.keys():
            # Closed files do not change: read only the new ones.
            self._seen = {key: self._seen.get(key) or _seen_in(one, key[1]) for key, one in closed.items()}
            check_num_names(self._folder, sum(map(len, self._seen.values())))
            self._seen_together = frozenset(closed), _earliest(self._seen.values())
        seen = self._seen_together[1]
        for row_file, limit in open_files:
            if isinstance(row_file, Stream):
                found = _seen_in(row_file, limit)
                if any(target not in seen or when < seen[target] for target, when in found.items()):
                    seen = _earliest([seen, found])
        return seen

    def _row_file(self, numbers_of: Numbers, name: str, merged: Mapping[str, MergedPart]) -> Stream | Part:
        if name.endswith(".arrow"):
            stream = read_stream(self._folder / name)
            if stream is not None:
                return stream
            # Compacted since the folder was listed.
        part = self._part(numbers_of)
        if part.merged is None and numbers_of[0] != numbers_of[1]:
            part.merged = merged.get(part.path.name) or read_merged(part)
            part.told = part.merged.session, part.merged.steps, part.merged.num_rows
        return part

    def _part(self, numbers_of: Numbers) -> Part:
        part = self._parts.get(numbers_of)
        if part is None:
            first, last = numbers_of
            path = self._folder / part_name(first, "parquet", last)
            part = self._parts[numbers_of] = Part(path, first, self._footers, last_number=last)
        return part


def _numbers(row_file: Stream | Part) -> Numbers:
    """Return the first and last number of the parts in a file."""
    return row_file.number, row_file.last_number


def _read(row_file: Stream | Part, columns: Sequence[str], wanted: Wanted) -> Any:
    """Read rows; those of a file without distributions have none."""
    if DETAIL not in columns or row_file.has_detail:
        return row_file.read(columns, wanted)
    table = row_file.read([name for name in columns if name != DETAIL], wanted)
    return table.append_column(DETAIL, pa.nulls(table.num_rows, type_of(DETAIL))).select(list(columns))


def taken_back_from(session: int, sessions: Sessions) -> int | None:
    """Return the step from which later sessions discarded a session's rows; None if they did not."""
    return min((int(later["first_step"]) for later in sessions[session + 1 :]), default=None)


def one_table(tables: Sequence[Any], columns: Sequence[str]) -> Any:
    """Concatenate tables of several files, with one dictionary."""
    tables = [table.replace_schema_metadata(None) for table in tables]
    whole = pa.concat_tables(tables) if tables else pa.table({name: pa.array([], type_of(name)) for name in columns})
    return whole.unify_dictionaries().combine_chunks()


def _seen_in(one: RollupFile | Part | Stream, limit: int | None) -> dict[str, When]:
    """The step and order of the first row of each target in a file."""
    step = "first_step" if isinstance(one, RollupFile) else "step"
    columns = [step, "target", *(["order"] if "order" in one.column_names else [])]
    table = one.read(columns) if isinstance(one, RollupFile) else one.read(columns, EVERYTHING.at_most(limit))
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
    """The first observation of each target, in that order."""
    seen: dict[str, When] = {}
    for found in all_seen:
        for target, when in found.items():
            if target not in seen or when < seen[target]:
                seen[target] = when
    return dict(sorted(seen.items(), key=lambda item: item[1]))


@cached_listing
def quantities(rank_folder: Path) -> list[str]:
    """Return the names of the quantities a rank has recorded; skips invalid names."""
    names = list_names(rank_folder, RANK_DEPTH)
    live = {name.removesuffix(LIVE) for name in names if name.endswith(LIVE)}
    found = {name for name in names if is_quantity(name) and name not in live and _has_part(rank_folder / name)}
    return sorted({QUANTITIES.get(name, name) for name in found.union(filter(is_quantity, live))})


def summaries(table: Any) -> Table:
    """Return rows as Summaries; NaN where nothing was recorded."""
    # By column: that is how they are stored and how statistics read them.
    rows = np.empty((table.num_rows, len(COLUMNS)), order="F")
    for position, name in enumerate(COLUMNS):
        rows[:, position] = numbers(table.column(name)) if name in table.column_names else np.nan
    return rows


def _has_part(folder: Path) -> bool:
    """Whether a folder has any part; stops at the first one."""
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
    log.warning("skipped: %s", text)
