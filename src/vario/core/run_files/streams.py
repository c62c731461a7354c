"""Arrow streams of a run, read batch by batch up to the last whole one.

Nothing in a stream is compressed, so its arrays take no more than its bytes. Arrow trusts what a batch says of its
arrays: each is checked before anybody looks into it, since a wrong length reads memory that is not its own.
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
"""A writer closes a stream at 32 MB, and at 110 MB after a full disk."""
NOT_WHOLE = (pa.ArrowException, OSError, EOFError, ValueError, TypeError, KeyError, IndexError, OverflowError)
"""What a batch raises that is being written, was when its writer died, or is damaged."""

_PREFIX = struct.Struct("<iI")
"""What a message begins with: a mark, and the size of its description."""
_TABLE = struct.Struct("<I")
_OFFSET = struct.Struct("<i")
_SLOT = struct.Struct("<H")


def read_stream_bytes(path: Path, depth: int) -> bytes:
    """The bytes of a stream; FileNotFoundError where there is none."""
    return read_bytes(path, depth, MOST_STREAM_BYTES)


@dataclass
class Batches:
    """The whole batches of a stream, as the columns of one table: names have one dictionary, the last of the stream."""

    schema: Any
    _columns: list[list[Any]] = field(default_factory=list)
    _names: Any = None
    """It only grows within a stream, so the last one serves all."""

    def add(self, batch: Any) -> None:
        """Take in one batch; raises one of NOT_WHOLE where its arrays are not what it says."""
        batch.validate()
        if batch.num_columns != len(self.schema):
            raise ValueError("a batch lacks a column")
        arrays = [batch.column(index) for index in range(batch.num_columns)]
        place = self.schema.get_field_index("target")
        if place >= 0:
            if not isinstance(arrays[place], pa.DictionaryArray):
                raise ValueError("its names are not kept as a dictionary")
            names = arrays[place].dictionary
            if self._names is not None and len(names) < len(self._names):
                raise ValueError("its names became fewer")
            # Earlier dictionaries are let go: a stream with many additions would hold each of them whole.
            self._names, arrays[place] = names, arrays[place].indices
        self._columns.append(arrays)

    def table(self) -> Any:
        """All rows; raises one of NOT_WHOLE where names are damaged."""
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
    """Whether a writer died, or is, before the schema was whole: nothing is lost then."""
    if len(raw) < _PREFIX.size or raw[:4] == bytes(4):
        return raw[:4] in (b"\xff\xff\xff\xff"[: len(raw)], bytes(len(raw[:4])))
    mark, length = _PREFIX.unpack_from(raw)
    return bool(mark == -1 and len(raw) < _PREFIX.size + length)


def read_batches(path: Path, raw: bytes) -> tuple[Any, Any]:
    """Schema and rows of a stream, up to its last whole batch."""
    try:
        reader = pa.ipc.open_stream(_plain(raw))
        batches = Batches(reader.schema)
        while True:
            try:
                batches.add(reader.read_next_batch())
            except (StopIteration, *NOT_WHOLE):
                break  # the writer was killed, is writing this very batch, or this is the end
        return reader.schema, batches.table()
    except NOT_WHOLE as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: BaseException) -> RunCorrupt:
    """The error of a stream that Arrow does not understand."""
    return RunCorrupt(
        f"{path}: not readable as an Arrow stream: {error}. Its rows are lost. Moved away, the rest of the run is read "
        f"without it."
    )


def _plain(raw: bytes) -> Any:
    """The bytes of the whole messages; refuses one that is compressed, since a few bytes could become any number."""
    buffer = pa.py_buffer(raw)
    end = 0
    for _, metadata, size in messages(buffer):
        if is_compressed(metadata):
            raise ValueError("it is compressed, which no stream of a run is")
        end += size
    return buffer.slice(0, end)


def messages(buffer: Any) -> Iterator[tuple[str, Any, int]]:
    """Kind, description and size of each whole message at the beginning of some bytes."""
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
    """Whether the body of a message is compressed, from its description, whose layout Arrow has checked."""
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
