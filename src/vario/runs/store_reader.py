"""Reads one quantity of one rank: Parquet parts, parts that are still streams, and the live stream, as one table.

Works while the rank is writing. The live stream is read first and the list of parts after it, so rows that move from
one to the other in between are seen once: a live stream whose number exists as a part is ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from vario.errors import RunCorrupt, RunTooNew
from vario.records import COLUMNS, Table

FORMAT = 1
"""The newest format this reader understands."""

PART = re.compile(r"part-(\d+)\.(arrow|parquet)")
LIVE = ".live.arrow"

When = tuple[int, int]
"""A step and the order within it."""

LAST = 2**31
"""Stands for the order of rows that have none: plain numbers come after everything observed in their step."""


@dataclass(frozen=True)
class Stream:
    """The rows of one Arrow stream, up to its last whole batch."""

    number: int
    session: int
    rows: Any

    @property
    def column_names(self) -> list[str]:
        """All columns."""
        return list(self.rows.column_names)

    def read(self, columns: Sequence[str], target: str | None, step: int | None, limit: int | None) -> Any:
        """The chosen rows and columns."""
        return _choose(self.rows.select(_with_filters(columns, target, step, limit)), columns, target, step, limit)

    def bad_rows(self, columns: Sequence[str], limit: int | None) -> Any:
        """The rows that count a NaN or an Inf."""
        return _only_bad(self.read([*columns, "nans", "infs"], None, None, limit))


@dataclass
class Part:
    """One Parquet part: its footer is read once, its rows when somebody asks."""

    path: Path
    number: int
    footer: Any
    session: int
    _ranges: dict[str, list[tuple[Any, Any] | None]] = field(default_factory=dict)

    def ranges(self, column: str) -> list[tuple[Any, Any] | None]:
        """Smallest and largest value of a column in each row group; None where the footer does not tell."""
        if column not in self._ranges:
            position = self.footer.schema.names.index(column)
            groups = [self.footer.row_group(index).column(position).statistics for index in range(self.num_groups)]
            self._ranges[column] = [
                (group.min, group.max) if group is not None and group.has_min_max else None for group in groups
            ]
        return self._ranges[column]

    @property
    def column_names(self) -> list[str]:
        """All columns."""
        return list(self.footer.schema.names)

    @property
    def num_groups(self) -> int:
        """Number of row groups."""
        return int(self.footer.num_row_groups)

    def read(self, columns: Sequence[str], target: str | None, step: int | None, limit: int | None) -> Any:
        """The chosen rows and columns; only row groups that can hold them are decoded."""
        groups = list(range(self.num_groups))
        for column, wanted in (("target", target), ("step", step)):
            if wanted is not None:
                ranges = self.ranges(column)
                groups = [group for group in groups if _may_hold(ranges[group], wanted)]
        if limit is not None:
            ranges = self.ranges("step")
            groups = [group for group in groups if (found := ranges[group]) is None or found[0] < limit]
        table = self._read_groups(groups, _with_filters(columns, target, step, limit))
        return _choose(table, columns, target, step, limit)

    def bad_rows(self, columns: Sequence[str], limit: int | None) -> Any:
        """The rows that count a NaN or an Inf; a healthy part is judged by its footer alone."""
        nans, infs = self.ranges("nans"), self.ranges("infs")
        groups = [group for group in range(self.num_groups) if _may_exceed_zero(nans[group], infs[group])]
        columns = [*columns, "nans", "infs"]
        table = self._read_groups(groups, _with_filters(columns, None, None, limit))
        return _only_bad(_choose(table, columns, None, None, limit))

    def _read_groups(self, groups: list[int], columns: list[str]) -> Any:
        try:
            with pq.ParquetFile(self.path, metadata=self.footer) as file:
                return file.read_row_groups(groups, columns=columns, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise RunCorrupt(f"{self.path}: not readable as Parquet: {error}") from error


class QuantityReader:
    """All rows of one quantity of one rank."""

    def __init__(self, rank_folder: Path, quantity: str) -> None:
        self._folder = rank_folder / quantity
        self._live = rank_folder / f"{quantity}{LIVE}"
        self._parts: dict[int, Part] = {}
        self._seen: dict[tuple[int, int | None], dict[str, When]] = {}

    def pieces(self) -> list[Stream | Part]:
        """Everything that is there now, oldest first."""
        live = _read_stream(self._live)
        pieces = list(self.closed_pieces(()))
        if live is not None and all(live.number != piece.number for piece in pieces):
            pieces.append(live)
        return pieces

    def closed_pieces(self, known: Collection[int]) -> Iterator[Stream | Part]:
        """The closed parts that are not among the known ones, oldest first."""
        found: dict[int, set[str]] = {}
        for name in _names(self._folder):
            if (match := PART.fullmatch(name)) and int(match[1]) not in known:
                found.setdefault(int(match[1]), set()).add(match[2])
        for number in sorted(found):
            yield self._piece(number, found[number])

    def read(
        self,
        columns: Sequence[str],
        sessions: Sequence[Mapping[str, Any]],
        target: str | None = None,
        step: int | None = None,
    ) -> Any:
        """Chosen columns of the rows of one target, one step or all, without those that a resume took back."""
        tables = [piece.read(columns, target, step, limit) for piece, limit in self.shown(sessions)]
        tables = [table.replace_schema_metadata(None) for table in tables]
        whole = pa.concat_tables(tables) if tables else pa.table({name: pa.array([], pa.int64()) for name in columns})
        return whole.unify_dictionaries().combine_chunks()

    def shown(self, sessions: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Stream | Part, int | None]]:
        """Each piece and the step from which its rows were taken back by a later session."""
        for piece in self.pieces():
            later = [session["first_step"] for session in sessions[piece.session + 1 :]]
            yield piece, min(later, default=None)

    def first_seen(self, sessions: Sequence[Mapping[str, Any]]) -> dict[str, When]:
        """Each target with the step and order of its first row."""
        seen: dict[str, When] = {}
        for piece, limit in self.shown(sessions):
            key = (piece.number, limit)
            if key in self._seen:
                found = self._seen[key]
            else:
                found = _first_seen(piece, limit)
                if isinstance(piece, Part):
                    self._seen[key] = found
            for target, when in found.items():
                seen.setdefault(target, when)
        return seen

    def _piece(self, number: int, kinds: set[str]) -> Stream | Part:
        if "parquet" not in kinds:
            stream = _read_stream(self._folder / f"part-{number:06d}.arrow")
            if stream is not None:
                return stream
            # Compacted since we listed the folder.
        if number not in self._parts:
            self._parts[number] = _open_part(self._folder / f"part-{number:06d}.parquet", number)
        return self._parts[number]


def _first_seen(piece: Stream | Part, limit: int | None) -> dict[str, When]:
    has_order = "order" in piece.column_names
    columns = ["step", "target", *(["order"] if has_order else [])]
    table = piece.read(columns, None, None, limit).unify_dictionaries().combine_chunks()
    if not table.num_rows:
        return {}
    steps = table.column("step").to_numpy()
    order = table.column("order").to_numpy() if has_order else np.full(len(steps), LAST)
    target = table.column("target").chunk(0)
    names = target.dictionary.to_pylist()
    positions = np.lexsort((order, steps))
    codes, first = np.unique(target.indices.to_numpy()[positions], return_index=True)
    rows = positions[first]
    by_time = np.lexsort((order[rows], steps[rows]))
    return {names[codes[index]]: (int(steps[rows[index]]), int(order[rows[index]])) for index in by_time}


def quantities(rank_folder: Path) -> list[str]:
    """Names of the quantities a rank has recorded."""
    names = {name.removesuffix(LIVE) for name in _names(rank_folder) if name.endswith(LIVE)}
    for name in _names(rank_folder):
        if any(PART.fullmatch(entry) for entry in _names(rank_folder / name)):
            names.add(name)
    return sorted(names)


def summaries(table: Any) -> Table:
    """Rows as Summaries; NaN stands where nothing was recorded."""
    rows = np.full((table.num_rows, len(COLUMNS)), np.nan)
    for position, name in enumerate(COLUMNS):
        if name in table.column_names:
            column = table.column(name)
            rows[:, position] = column.cast(pa.float64()).to_numpy()
    return rows


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _open_part(path: Path, number: int) -> Part:
    try:
        footer = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise RunCorrupt(f"{path}: not readable as Parquet: {error}") from error
    return Part(path, number, footer, _session(path, footer.metadata or {}))


def _session(path: Path, metadata: Mapping[bytes, bytes]) -> int:
    if int(metadata.get(b"vario.format", b"0")) > FORMAT:
        raise RunTooNew(f"{path}: written by a newer vario; pip install -U vario")
    return int(metadata.get(b"vario.session", b"0"))


def _read_stream(path: Path) -> Stream | None:
    """The whole batches of a stream; None when there is no file, or nothing whole in it yet."""
    try:
        # Not memory-mapped: the writer may cut a failed append off again, and a page that vanishes kills the reader.
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        reader = pa.ipc.open_stream(raw)
    except (pa.ArrowException, OSError, EOFError) as error:
        if path.name.endswith(LIVE) and raw[:4] in (b"\xff\xff\xff\xff"[: len(raw)], bytes(4)):
            return None  # killed before the schema was whole
        raise RunCorrupt(f"{path}: not readable as an Arrow stream: {error}") from error
    batches = []
    torn = False
    while not torn:
        try:
            batches.append(reader.read_next_batch())
        except (StopIteration, pa.ArrowException, OSError):
            torn = True  # the writer was killed, or is writing this very batch
    metadata = reader.schema.metadata or {}
    rows = one_dictionary(batches, reader.schema)
    return Stream(int(metadata.get(b"vario.part", b"0")), _session(path, metadata), rows)


def one_dictionary(batches: list[Any], schema: Any) -> Any:
    """One table whose target column has one dictionary: it only grows within a stream, so the last one serves all."""
    if not batches:
        return schema.empty_table()
    position = schema.get_field_index("target")
    names = batches[-1].column(position).dictionary
    columns = [pa.chunked_array([batch.column(index) for batch in batches]) for index in range(len(schema))]
    indices = pa.chunked_array([batch.column(position).indices for batch in batches]).combine_chunks()
    columns[position] = pa.chunked_array([pa.DictionaryArray.from_arrays(indices, names)])
    return pa.Table.from_arrays(columns, schema=schema)


def _with_filters(columns: Sequence[str], target: str | None, step: int | None, limit: int | None) -> list[str]:
    needed = list(dict.fromkeys(columns))
    if target is not None and "target" not in needed:
        needed.append("target")
    if (step is not None or limit is not None) and "step" not in needed:
        needed.append("step")
    return needed


def _choose(table: Any, columns: Sequence[str], target: str | None, step: int | None, limit: int | None) -> Any:
    keep: npt.NDArray[np.bool_] | None = None
    if target is not None:
        keep = _is_target(table.column("target"), target)
    if step is not None:
        same = table.column("step").to_numpy() == step
        keep = same if keep is None else keep & same
    if limit is not None:
        before = table.column("step").to_numpy() < limit
        keep = before if keep is None else keep & before
    table = table.select(list(dict.fromkeys(columns)))
    return table if keep is None else table.take(pa.array(np.flatnonzero(keep)))


def _is_target(column: Any, target: str) -> npt.NDArray[np.bool_]:
    masks = [np.zeros(0, np.bool_)]
    for chunk in column.chunks:
        code = chunk.dictionary.index(target).as_py()
        masks.append(chunk.indices.to_numpy() == code if code >= 0 else np.zeros(len(chunk), np.bool_))
    return np.concatenate(masks)


def _only_bad(table: Any) -> Any:
    counts = [table.column(name).cast(pa.float64()).to_numpy() for name in ("nans", "infs")]
    return table.take(pa.array(np.flatnonzero((counts[0] > 0) | (counts[1] > 0))))


def _may_hold(found: tuple[Any, Any] | None, wanted: Any) -> bool:
    return found is None or found[0] <= wanted <= found[1]


def _may_exceed_zero(*ranges: tuple[Any, Any] | None) -> bool:
    return any(found is None or found[1] > 0 for found in ranges)
