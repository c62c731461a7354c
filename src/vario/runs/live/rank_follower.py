"""Reads the rows of one rank as they arrive: each once, from where the last read ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from vario.core.old_names import stored_name
from vario.core.records import Frame
from vario.core.run_files import open_file
from vario.core.run_files.columns import check_rows, check_schema, columns_of
from vario.core.run_files.streams import MOST_STREAM_BYTES, messages, read_batches, unreadable
from vario.core.run_format import LIVE
from vario.rules.api.series_state import Memory
from vario.rules.api.step_view import Facts, Step
from vario.runs.files.arrays import numbers, take
from vario.runs.files.new_names import with_new_names
from vario.runs.files.row_files import LIVE_DEPTH, session_of
from vario.runs.files.store_reader import QuantityReader, quantities
from vario.runs.files.tables import all_columns, in_order
from vario.runs.findings.replay import PASSED_OVER, frames_of, scalars_of

Sessions = Sequence[Mapping[str, Any]]

_MOST_STREAMS = 16
_STEP_TIMES_KEPT = 64
MOST_MERGED = 1 << 16
"""The most parts that one took the place of."""


@dataclass
class _Place:
    """How far a live stream has been read."""

    number: int
    session: int
    schema: bytes
    offset: int
    names: bytes = b""
    """The messages that build its dictionary."""


class QuantityFollower:
    """New rows of one quantity of one rank."""

    def __init__(self, rank_folder: Path, quantity: str) -> None:
        self._quantity = quantity
        self._live = rank_folder / f"{stored_name(rank_folder, quantity)}{LIVE}"
        self._reader = QuantityReader(rank_folder, quantity)
        self._place: _Place | None = None
        self._done: set[int] = set()
        self._newest_closed = -1
        self._last: tuple[int, frozenset[tuple[int, str]]] = (-1, frozenset())
        """The newest step of the stream that is being read, and the rows read of it."""

    def new_rows(self, sessions: Sessions) -> list[Any]:
        """Return tables of the rows since the last call, without those that a resume discarded."""
        tables: list[Any] = []
        # A stream may become a part, and a new one begin, while reading: then there is more to read immediately.
        for _ in range(_MOST_STREAMS):
            live = self._new_of_live(len(sessions))
            tables += self._closed(sessions)
            place = self._place
            if place is None or place.number not in self._done:
                if live is not None and place is not None:
                    tables.append(self._cut(live, place.session, sessions))
                    self._note(live)
                break
            self._place, self._last = None, (-1, frozenset())
        return [in_order(table) for table in tables if table.num_rows]

    def _closed(self, sessions: Sessions) -> Iterator[Any]:
        for row_file in self._reader.closed_row_files(self._done):
            if row_file.session < len(sessions):
                table = self._cut(row_file.read(all_columns(self._quantity)), row_file.session, sessions)
                steps = numbers(table.column("step"))
                if row_file.number in self._done:
                    # It took the place of parts of which the first were read.
                    table = take(table, np.flatnonzero(steps > self._newest_closed))
                self._newest_closed = max(self._newest_closed, int(steps.max()) if len(steps) else -1)
                last = min(row_file.last_number, row_file.number + MOST_MERGED)
                self._done.update(range(row_file.number, last + 1), (row_file.last_number,))
                # It may have been partly read while it was the live stream.
                place = self._place
                was_live = place is not None and row_file.number <= place.number <= row_file.last_number
                yield self._unseen(table) if was_live else table

    def _new_of_live(self, num_sessions: int) -> Any:
        """The complete batches appended to the live stream; None if there are none."""
        try:
            file = open_file(self._live, LIVE_DEPTH, MOST_STREAM_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None
        with file:
            place = self._place
            if place is not None and file.read(len(place.schema)) != place.schema:
                return None  # the stream has become a part
            if place is None:
                place = self._begun(file.read(MOST_STREAM_BYTES) or b"")
                if place is None or place.session >= num_sessions or place.number in self._done:
                    return None  # nothing complete yet, or of a session that is not recorded yet
                self._place = place
            file.seek(place.offset)
            raw = file.read(MOST_STREAM_BYTES) or b""
        found = _messages(raw)
        if not found:
            return None
        place.offset += sum(len(message) for _, message in found)
        _, rows = read_batches(self._live, b"".join([place.schema, place.names, *(message for _, message in found)]))
        place.names += b"".join(message for kind, message in found if kind == "dictionary")
        try:
            check_rows(rows)
        except ValueError as error:
            raise unreadable(self._live, error) from error
        return with_new_names(self._quantity, rows)

    def _begun(self, raw: bytes) -> _Place | None:
        """The start of a live stream; None if its schema is incomplete."""
        for kind, message in _messages(raw)[:1]:
            schema, _ = read_batches(self._live, message)
            stamp = schema.metadata or {}
            try:
                check_schema(schema, columns_of(self._quantity))
                number, session = int(stamp.get(b"vario.part", b"0")), session_of(self._live, stamp)
            except ValueError as error:
                raise unreadable(self._live, error) from error
            return _Place(number, session, message, len(message)) if kind == "schema" else None
        return None

    def _cut(self, table: Any, session: int, sessions: Sessions) -> Any:
        later = [int(begun["first_step"]) for begun in sessions[session + 1 :]]
        if not later:
            return table
        return take(table, np.flatnonzero(numbers(table.column("step")) < min(later)))

    def _note(self, table: Any) -> None:
        steps = numbers(table.column("step"))
        if len(steps):
            newest = int(steps.max())
            rows = take(table, np.flatnonzero(steps == newest))
            keys = frozenset(_keys(rows))
            self._last = newest, keys | (self._last[1] if newest == self._last[0] else frozenset())

    def _unseen(self, table: Any) -> Any:
        newest, keys = self._last
        steps = numbers(table.column("step"))
        fresh = steps > newest
        at = np.flatnonzero(steps == newest)
        for index, key in zip(at, _keys(take(table, at)), strict=True):
            fresh[index] = key not in keys
        return take(table, np.flatnonzero(fresh))


class RankFollower:
    """The steps of one rank as they become complete."""

    def __init__(self, rank_folder: Path, order: Sequence[str], facts: Facts, memory: Memory) -> None:
        """`order`: the quantities in the run's order."""
        self._folder = rank_folder
        self._order = {quantity: position for position, quantity in enumerate(order)}
        self._facts = facts
        self._memory = memory
        self._followers: dict[str, QuantityFollower] = {}
        self._scalars: dict[int, tuple[float, dict[str, float]]] = {}
        self._frames: dict[int, list[Frame]] = {}
        self._yielded = -1
        self.newest: tuple[int, float] | None = None
        """The newest step and when it ended."""
        self.step_seconds: deque[float] = deque(maxlen=_STEP_TIMES_KEPT)
        """How long the last steps took, if recorded."""

    def new_steps(self, sessions: Sessions, is_over: bool) -> Iterator[Step]:
        """Return the newly completed steps; all remaining ones if no more can follow."""
        # Plain numbers first: everything of a step is written before those of the next.
        for table in self._rows("scalar", sessions):
            for step, (time, values) in scalars_of(table).items():
                known = self._scalars.get(step, (0.0, {}))
                self._scalars[step] = (max(time, known[0]), {**known[1], **values})
                if "step_seconds" in values:
                    self.step_seconds.append(values["step_seconds"])
        if self._scalars:
            newest = max(self._scalars)
            self.newest = newest, self._scalars[newest][0]
        limit = None if is_over else max(self._scalars, default=-1)
        for quantity in quantities(self._folder):
            if quantity != "scalar" and quantity not in PASSED_OVER:
                for table in self._rows(quantity, sessions):
                    for frame in frames_of(quantity, table):
                        self._frames.setdefault(frame.step, []).append(frame)
        for number in sorted({*self._scalars, *self._frames}):
            if limit is not None and number >= limit:
                break
            time, values = self._scalars.pop(number, (0.0, {}))
            frames = self._frames.pop(number, [])
            if number > self._yielded:
                self._yielded = number
                yield Step(number, time, values, sorted(frames, key=self._position), self._facts, self._memory)

    def _rows(self, quantity: str, sessions: Sessions) -> list[Any]:
        if quantity not in self._followers:
            self._followers[quantity] = QuantityFollower(self._folder, quantity)
        return self._followers[quantity].new_rows(sessions)

    def _position(self, frame: Frame) -> tuple[int, str, int]:
        return self._order.get(frame.quantity, len(self._order)), frame.quantity, frame.micro_step


def _messages(raw: bytes) -> list[tuple[str, bytes]]:
    """The complete messages at the start of some bytes: their kinds and their bytes."""
    found, at = [], 0
    for kind, _, size in messages(pa.py_buffer(raw)):
        found.append((kind, raw[at : at + size]))
        at += size
    return found


def _keys(table: Any) -> list[tuple[int, str]]:
    targets = table.column("target").to_pylist()
    micro = table.column("micro_step").to_pylist() if "micro_step" in table.column_names else [0] * len(targets)
    return list(zip(micro, targets, strict=True))
