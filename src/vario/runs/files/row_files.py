"""One file of rows: a Parquet part, or the complete batches of an Arrow stream."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vario.core.elements.bins import DETAIL
from vario.core.errors import RunCorrupt, RunTooNew
from vario.core.merged_parts import MergedPart
from vario.core.old_names import old_target
from vario.core.run_files.columns import check_rows, check_schema, columns_of, kind_of
from vario.core.run_files.parquet import check_file, read_footer, read_groups, unreadable
from vario.core.run_files.streams import NOT_WHOLE, is_unbegun, read_batches, read_stream_bytes
from vario.core.run_files.streams import unreadable as unreadable_stream
from vario.core.run_format import LIVE, NEWEST_FORMAT
from vario.runs.files.arrays import numbers, place_of, take
from vario.runs.files.new_names import with_new_names

LIVE_DEPTH, PART_DEPTH = 2, 3
"""How deep below the run's folder live streams and parts are."""

MOST_FOOTERS = 16
"""A long run has thousands of parts, and each cached footer keeps much more memory alive."""

Span = tuple[int, int]
"""A first and a last step."""


class PartGone(RunCorrupt, FileNotFoundError):
    """A part vanished while it was read: its rows are in a larger one now, or somebody removed it."""


@dataclass(frozen=True)
class Wanted:
    """Selects rows: of one target or all, in a range of steps or at a single one."""

    target: str | None = None
    first: int | None = None
    last: int | None = None

    def at_most(self, limit: int | None) -> Wanted:
        """Return the same selection, limited to steps before this one."""
        if limit is None or (self.last is not None and self.last < limit):
            return self
        return Wanted(self.target, self.first, limit - 1)

    @property
    def by_step(self) -> bool:
        """Whether it selects by step."""
        return self.first is not None or self.last is not None

    def may_hold(self, span: Span | None) -> bool:
        """Whether it may select rows of these steps; True for None, which is unknown."""
        if span is None:
            return True
        return (self.first is None or span[1] >= self.first) and (self.last is None or span[0] <= self.last)

    def has_all_of(self, span: Span | None) -> bool:
        """Whether it selects all rows of these steps."""
        if span is None:
            return not self.by_step
        return (self.first is None or span[0] >= self.first) and (self.last is None or span[1] <= self.last)


EVERYTHING = Wanted()


class Footers:
    """A thread-safe cache of the Parquet footers that were read last."""

    def __init__(self, most: int = MOST_FOOTERS) -> None:
        self._most = most
        self._kept: OrderedDict[Path, Any] = OrderedDict()
        self._lock = Lock()

    def read(self, path: Path) -> Any:
        """Return the footer of a file; raises FileNotFoundError if it no longer exists."""
        with self._lock:
            if path in self._kept:
                self._kept.move_to_end(path)
                return self._kept[path]
        footer = read_footer(path, PART_DEPTH)
        try:
            check_schema(footer.schema.to_arrow_schema(), columns_of(path.parent.name))
        except (*NOT_WHOLE, MemoryError) as error:
            raise unreadable(path, error) from error
        with self._lock:
            self._kept[path] = footer
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return footer


@dataclass(frozen=True)
class Stream:
    """The rows of one Arrow stream, up to its last complete batch."""

    number: int
    session: int
    rows: Any
    place: Path

    @property
    def last_number(self) -> int:
        """As `number`: a stream is one part."""
        return self.number

    @property
    def merged(self) -> None:
        """Nothing: it has all its rows."""
        return

    @property
    def size(self) -> int:
        """Bytes of its rows, the same on disk and in memory."""
        return int(self.rows.nbytes)

    @property
    def column_names(self) -> list[str]:
        """All columns."""
        return list(self.rows.column_names)

    @property
    def has_detail(self) -> bool:
        """Whether rows may have more than a Summary."""
        return _has_detail(self.rows.schema)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.rows.num_rows)

    @property
    def span(self) -> Span | None:
        """Its first and last step; None if it has no rows."""
        steps = numbers(self.rows.column("step"))
        return (int(steps.min()), int(steps.max())) if len(steps) else None

    def read(self, columns: Sequence[str], wanted: Wanted = EVERYTHING) -> Any:
        """Read the selected rows and columns."""
        return _choose(self.rows.select(_with_filters(columns, wanted)), columns, wanted)

    def bad_rows(self, columns: Sequence[str], limit: int | None) -> Any:
        """Read the rows with a NaN or Inf."""
        return _only_bad(self.read([*columns, "nans", "infs"], EVERYTHING.at_most(limit)))


_NO_ROWS = pa.table({})


@dataclass
class Part:
    """One Parquet part; its footer is read only when needed."""

    path: Path
    number: int
    footers: Footers
    told: tuple[int, Span, int] | None = None
    """Session, first and last step, and number of rows, where a rollup or `merged.json` tells them."""
    last_number: int = 0
    """The last of the parts whose place it took, or its own number."""
    merged: MergedPart | None = None
    """What it says of them; None for a part as it was written."""
    _ranges: dict[str, list[tuple[Any, Any] | None]] = field(default_factory=dict)

    @property
    def place(self) -> Path:
        """Its path."""
        return self.path

    @cached_property
    def size(self) -> int:
        """Bytes on disk."""
        try:
            return self.path.lstat().st_size
        except OSError:
            return 0

    @property
    def footer(self) -> Any:
        """The Parquet footer."""
        try:
            return self.footers.read(self.path)
        except FileNotFoundError as error:
            raise PartGone(f"{self.path}: was merged with others while it was read. Read again.") from error

    @property
    def session(self) -> int:
        """The session that wrote it."""
        return self.told[0] if self.told is not None else session_of(self.path, self.footer.metadata or {})

    @property
    def span(self) -> Span | None:
        """Its first and last step; None if unknown."""
        if self.told is None:
            self.told = self._from_footer()
        return self.told[1] if self.told[1][0] <= self.told[1][1] else None

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.told[2] if self.told is not None else int(self.footer.num_rows)

    def ranges(self, column: str) -> list[tuple[Any, Any] | None]:
        """Return the smallest and largest value of a column in each row group; None if the footer lacks them."""
        if column not in self._ranges:
            self._ranges[column] = group_ranges(self.footer, column)
        return self._ranges[column]

    @property
    def column_names(self) -> list[str]:
        """All columns."""
        return list(self.footer.schema.names)

    @property
    def has_detail(self) -> bool:
        """Whether rows may have more than a Summary."""
        return DETAIL in self.footer.schema.names and _has_detail(self.footer.schema.to_arrow_schema())

    @property
    def num_groups(self) -> int:
        """Number of row groups."""
        return int(self.footer.num_row_groups)

    def read(self, columns: Sequence[str], wanted: Wanted = EVERYTHING) -> Any:
        """Read the selected rows and columns; decodes only row groups that can contain them."""
        footer = self.footer
        groups = list(range(footer.num_row_groups))
        if wanted.target is not None:
            groups = groups_of(footer, self.path.parent.name, wanted.target)
        elif wanted.by_step and not wanted.has_all_of(self.span):
            ranges = self.ranges("step")
            groups = [group for group in groups if wanted.may_hold(ranges[group])]
        return _choose(self._read_groups(groups, _with_filters(columns, wanted)), columns, wanted)

    def bad_rows(self, columns: Sequence[str], limit: int | None) -> Any:
        """Read the rows with a NaN or Inf; for a healthy part only the footer is read."""
        nans, infs = self.ranges("nans"), self.ranges("infs")
        groups = [group for group in range(self.num_groups) if _may_exceed_zero(nans[group], infs[group])]
        if not groups:
            return _NO_ROWS
        columns, wanted = [*columns, "nans", "infs"], EVERYTHING.at_most(limit)
        return _only_bad(_choose(self._read_groups(groups, _with_filters(columns, wanted)), columns, wanted))

    def _from_footer(self) -> tuple[int, Span, int]:
        known = [found for found in self.ranges("step") if found is not None]
        span = (min(first for first, _ in known), max(last for _, last in known)) if known else (0, -1)
        return self.session, span, self.num_rows

    def _read_groups(self, groups: list[int], columns: list[str]) -> Any:
        try:
            table = read_groups(self.path, PART_DEPTH, self.footer, groups, columns)
            check_rows(table)
        except FileNotFoundError as error:
            raise PartGone(f"{self.path}: was merged with others while it was read. Read again.") from error
        except ValueError as error:
            raise unreadable(self.path, error) from error
        return with_new_names(self.path.parent.name, table)


def _has_detail(schema: Any) -> bool:
    place = schema.get_field_index(DETAIL)
    return place >= 0 and str(schema.field(place).type) == kind_of(DETAIL)


def scanned(parts: Sequence[Part], columns: Sequence[str]) -> Any:
    """Return the rows of several parts as an Arrow dataset, for the caller to read piece by piece."""
    from vario.core.run_files.dataset import parquet_dataset

    for part in parts:
        check_file(part.path, PART_DEPTH, part.footer, columns)
    schema = parts[0].footer.schema.to_arrow_schema()
    chosen = pa.schema([schema.field(name) for name in columns])
    return parquet_dataset([part.path for part in parts], PART_DEPTH, chosen)


def groups_of(footer: Any, quantity: str, target: str) -> list[int]:
    """Return the row groups that can contain a target, under the name it has now or had before."""
    old = old_target(quantity, target)
    return sorted({*_groups_named(footer, target), *(() if old is None else _groups_named(footer, old))})


def _groups_named(footer: Any, target: str) -> list[int]:
    """They are sorted by target, so few are checked."""
    position = footer.schema.names.index("target")

    def ends(group: int) -> tuple[str, str] | None:
        found = footer.row_group(group).column(position).statistics
        return (found.min, found.max) if found is not None and found.has_min_max else None

    low, high = 0, footer.num_row_groups
    while low < high:
        middle = (low + high) // 2
        if (found := ends(middle)) is None:
            return list(range(footer.num_row_groups))
        if found[1] < target:
            low = middle + 1
        else:
            high = middle
    groups = []
    while low < footer.num_row_groups and ((found := ends(low)) is None or found[0] <= target):
        groups.append(low)
        low += 1
    return groups


def group_ranges(footer: Any, column: str) -> list[tuple[Any, Any] | None]:
    """Return the smallest and largest value of a column in each row group of a file; None if the footer lacks them."""
    position = footer.schema.names.index(column)
    groups = [footer.row_group(index).column(position).statistics for index in range(footer.num_row_groups)]
    return [(group.min, group.max) if group is not None and group.has_min_max else None for group in groups]


def session_of(path: Path, metadata: Mapping[bytes, bytes]) -> int:
    """Return the session that wrote a file; raises for a newer format."""
    version, session = (_stamp(path, metadata, name) for name in (b"vario.format", b"vario.session"))
    if version > NEWEST_FORMAT:
        raise RunTooNew(f"{path}: written by a newer vario; pip install -U vario")
    return session


def _stamp(path: Path, metadata: Mapping[bytes, bytes], name: bytes) -> int:
    found = metadata.get(name, b"0")
    if not (found.isdigit() and len(found) < 16):
        raise RunCorrupt(f"{path}: its {name.decode()} is not a number")
    return int(found)


def read_stream(path: Path) -> Stream | None:
    """Read the complete batches of a stream; None if there is no file, or no complete batch yet."""
    is_live = path.name.endswith(LIVE)
    try:
        # Not memory-mapped: the writer may truncate a failed append, and a page that disappears kills the reader.
        raw = read_stream_bytes(path, LIVE_DEPTH if is_live else PART_DEPTH)
    except FileNotFoundError:
        return None
    if is_live and is_unbegun(raw):
        return None
    schema, rows = read_batches(path, raw)
    metadata = schema.metadata or {}
    try:
        quantity = path.name.removesuffix(LIVE) if is_live else path.parent.name
        check_schema(schema, columns_of(quantity))
        check_rows(rows)
        rows = with_new_names(quantity, rows)
        return Stream(_stamp(path, metadata, b"vario.part"), session_of(path, metadata), rows, path)
    except ValueError as error:
        raise unreadable_stream(path, error) from error


def _with_filters(columns: Sequence[str], wanted: Wanted) -> list[str]:
    needed = [*columns, *(["target"] if wanted.target is not None else []), *(["step"] if wanted.by_step else [])]
    return list(dict.fromkeys(needed))


def _choose(table: Any, columns: Sequence[str], wanted: Wanted) -> Any:
    keep: npt.NDArray[np.bool_] | None = None
    if wanted.target is not None:
        keep = _is_target(table.column("target"), wanted.target)
    if wanted.by_step:
        steps = numbers(table.column("step"))
        inside = np.ones(len(steps), np.bool_) if keep is None else keep
        if wanted.first is not None:
            inside = inside & (steps >= wanted.first)
        if wanted.last is not None:
            inside = inside & (steps <= wanted.last)
        keep = inside
    table = table.select(list(dict.fromkeys(columns)))
    return table if keep is None or keep.all() else take(table, np.flatnonzero(keep))


def _is_target(column: Any, target: str) -> npt.NDArray[np.bool_]:
    masks = [np.zeros(0, np.bool_)]
    for chunk in column.chunks:
        code = place_of(target, chunk.dictionary)
        masks.append(numbers(chunk.indices) == code if code >= 0 else np.zeros(len(chunk), np.bool_))
    return np.concatenate(masks)


def _only_bad(table: Any) -> Any:
    nans, infs = (numbers(table.column(name)) for name in ("nans", "infs"))
    return take(table, np.flatnonzero((nans > 0) | (infs > 0)))


def _may_exceed_zero(*ranges: tuple[Any, Any] | None) -> bool:
    return any(found is None or found[1] > 0 for found in ranges)
