"""Reads Arrow streams of a run batch by batch, up to the last complete one.

Nothing in a stream is compressed, so its arrays take no more memory than its bytes. Arrow trusts a batch's metadata,
and a wrong length would read foreign memory, so each array is checked before use.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from vario.core.errors import RunCorrupt
from vario.core.run_files import read_bytes

MOST_STREAM_BYTES = 128 << 20
"""A writer closes a stream at 32 MB, or at 110 MB after a full disk."""
NOT_WHOLE = (pa.ArrowException, OSError, EOFError, ValueError, TypeError, KeyError, IndexError, OverflowError)
"""What reading raises for a batch that is incomplete or damaged."""

_PREFIX = struct.Struct("<iI")
"""The start of a message: a marker, and the size of its metadata."""
_TABLE = struct.Struct("<I")
_OFFSET = struct.Struct("<i")
_SLOT = struct.Struct("<H")


def read_stream_bytes(path: Path, depth: int) -> bytes:
    """Read the bytes of a stream; raises FileNotFoundError if there is none."""
    return read_bytes(path, depth, MOST_STREAM_BYTES)


@dataclass
class Batches:
    """The complete batches of a stream as one table, with the last dictionary of the stream for names."""

    schema: Any
    _columns: list[list[Any]] = field(default_factory=list)
    _names: Any = None
    """A dictionary only grows within a stream, so the last one covers all batches."""

    def add(self, batch: Any) -> None:
        """Add one batch; raises one of NOT_WHOLE if its arrays do not match its metadata."""
        batch.validate()
        if batch.num_columns != len(self.schema):
            raise ValueError("a batch lacks a column")
        arrays = [batch.column(index) for index in range(batch.num_columns)]
        place = self.schema.get_field_index("target")
        if place >= 0:
            if not isinstance(arrays[place], pa.DictionaryArray):
                raise ValueError("its names are not dictionary-encoded")
            names = arrays[place].dictionary
            if self._names is not None and len(names) < len(self._names):
                raise ValueError("its dictionary of names shrank")
            # Release earlier dictionaries: a stream with many additions would keep a full copy of each.
            self._names, arrays[place] = names, arrays[place].indices
        self._columns.append(arrays)

    def table(self) -> Any:
        """Return all rows; raises one of NOT_WHOLE if names are damaged."""
        if not self._columns:
            return self.schema.empty_table()
        columns = [pa.chunked_array([arrays[index] for arrays in self._columns]) for index in range(len(self.schema))]
        place = self.schema.get_field_index("target")
        if place >= 0:
            self._names.validate(full=True)
            indices = columns[place].combine_chunks()
            if indices.null_count or self._names.null_count:
                raise ValueError("a row has no name")
            # Arrow checks that every index has a name.
            columns[place] = pa.chunked_array([pa.DictionaryArray.from_arrays(indices, self._names)])
        return pa.Table.from_arrays(columns, schema=self.schema)


def is_unbegun(raw: bytes) -> bool:
    """Whether the schema is incomplete, because the writer died or is still writing it: nothing is lost then."""
    if len(raw) < _PREFIX.size or raw[:4] == bytes(4):
        return raw[:4] in (b"\xff\xff\xff\xff"[: len(raw)], bytes(len(raw[:4])))
    mark, length = _PREFIX.unpack_from(raw)
    return bool(mark == -1 and len(raw) < _PREFIX.size + length)


def read_batches(path: Path, raw: bytes) -> tuple[Any, Any]:
    """Read schema and rows of a stream, up to its last complete batch."""
    try:
        reader = pa.ipc.open_stream(_plain(raw))
        batches = Batches(reader.schema)
        while True:
            try:
                batches.add(reader.read_next_batch())
            except (StopIteration, *NOT_WHOLE):
                break  # the writer was killed or is writing this batch, or this is the end
        return reader.schema, batches.table()
    except NOT_WHOLE as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: BaseException) -> RunCorrupt:
    """Return the error for a stream that Arrow cannot read."""
    return RunCorrupt(
        f"{path}: not readable as an Arrow stream: {error}. Its rows are lost. Move the file away to read the rest "
        f"of the run."
    )


def _plain(raw: bytes) -> Any:
    """The bytes of the complete messages; raises for a compressed one, since a few bytes could expand to any size."""
    buffer = pa.py_buffer(raw)
    end = 0
    for _, metadata, size in messages(buffer):
        if is_compressed(metadata):
            raise ValueError("it is compressed, which a run's streams never are")
        end += size
    return buffer.slice(0, end)


def messages(buffer: Any) -> Iterator[tuple[str, Any, int]]:
    """Yield kind, metadata and size of each complete message at the start of some bytes."""
    at = 0
    while buffer.size - at >= _PREFIX.size:
        mark, length = _PREFIX.unpack_from(buffer, at)
        if mark != -1 or not length or buffer.size - at < _PREFIX.size + length:
            return
        try:
            message = pa.ipc.read_message(buffer.slice(at))
        except NOT_WHOLE:
            return  # it is being written
        size = _PREFIX.size + length + (0 if message.body is None else message.body.size)
        if at + size > buffer.size:
            return
        yield message.type, message.metadata, size
        at += size


def is_compressed(metadata: Any) -> bool:
    """Whether the body of a message is compressed, from its metadata, whose layout Arrow has checked."""
    raw = bytes(metadata)
    root = _TABLE.unpack_from(raw)[0]
    kind_at, header = _slot(raw, root, 1), _inner(raw, root, 2)
    if kind_at is None or header is None:
        return False
    kind = raw[kind_at]
    batch = header if kind == 3 else _inner(raw, header, 1) if kind == 2 else None
    return batch is not None and _slot(raw, batch, 3) is not None


def _slot(raw: bytes, table: int, number: int) -> int | None:
    """Where a field of a flatbuffer's table lies; None where the table has none."""
    layout = table - _OFFSET.unpack_from(raw, table)[0]
    at = 4 + 2 * number
    if at + 2 > _SLOT.unpack_from(raw, layout)[0]:
        return None
    offset = _SLOT.unpack_from(raw, layout + at)[0]
    return table + offset if offset else None


def _inner(raw: bytes, table: int, number: int) -> int | None:
    at = _slot(raw, table, number)
    return None if at is None else at + _TABLE.unpack_from(raw, at)[0]
