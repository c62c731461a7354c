"""Encode Frames as the bytes of an Arrow IPC stream."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vario.core.elements.bins import DETAIL
from vario.core.records import COLUMNS, MAX, MIN, Frame, Scalars
from vario.core.run_format import FORMAT

WHOLE_NUMBERS = frozenset({"count", "nans", "infs", "zeros"})
MOST_NAME_BYTES = 4096
"""Longer names are cut: readers accept no longer ones."""
MOST_TOGETHER = 4096
"""The most rows of several frames in one batch."""
TARGET = pa.dictionary(pa.int32(), pa.string())

FRAME_FIELDS: list[Any] = [
    pa.field("step", pa.int64()),
    pa.field("micro_step", pa.int32()),
    pa.field("order", pa.int32()),
    pa.field("target", TARGET),
    *(pa.field(name, pa.int64() if name in WHOLE_NUMBERS else pa.float64()) for name in COLUMNS),
]
SCALAR_FIELDS: list[Any] = [
    pa.field("step", pa.int64()),
    pa.field("time", pa.float64()),
    pa.field("target", TARGET),
    pa.field("value", pa.float64()),
]

_ARROW_TYPES: dict[np.dtype[Any], Any] = {
    np.dtype(np.int32): pa.int32(),
    np.dtype(np.int64): pa.int64(),
    np.dtype(np.float64): pa.float64(),
}
_DELTAS = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)


class _Collected(io.RawIOBase):
    """A file object for Arrow: collects what one batch writes."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        self._pieces.append(bytes(piece))
        return len(piece)

    def take(self) -> bytes:
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken


class StreamEncoder:
    """Turns the frames of one quantity into the bytes to append to one stream.

    The first bytes contain the schema. New names are sent as additions to the dictionary, so within a stream the
    dictionary only grows.
    """

    def __init__(
        self, quantity: str, part: int, session: int, columns: frozenset[str], has_detail: bool = False
    ) -> None:
        """`has_detail`: with a column for what rows have besides their Summaries."""
        self.part = part
        self._has_detail = has_detail
        self._columns = columns
        stamp: dict[bytes | str, bytes | str] = {
            "vario.format": str(FORMAT),
            "vario.part": str(part),
            "vario.session": str(session),
        }
        fields = [*FRAME_FIELDS, pa.field(DETAIL, pa.binary())] if has_detail else FRAME_FIELDS
        self.schema = pa.schema(SCALAR_FIELDS if quantity == "scalar" else fields, metadata=stamp)
        self._collected = _Collected()
        self._writer = pa.ipc.new_stream(self._collected, self.schema, options=_DELTAS)
        self._codes: dict[str, int] = {}
        self._dictionary = arrow_strings([])
        self._last_targets: Sequence[str] = ()
        self._last_column: Any = None

    @property
    def num_names(self) -> int:
        """How many names the dictionary has so far."""
        return len(self._codes)

    def encode_frames(self, frames: Sequence[Frame]) -> bytes:
        """Encode some frames as one batch."""
        lengths = [len(frame.targets) for frame in frames]
        num_rows = sum(lengths)
        summaries = _joined([frame.summaries for frame in frames])
        columns = [
            arrow_column(np.repeat(np.array([frame.step for frame in frames], np.int64), lengths)),
            arrow_column(np.repeat(np.array([frame.micro_step for frame in frames], np.int32), lengths)),
            arrow_column(_joined([np.asarray(frame.order, np.int32) for frame in frames])),
            self._target_column(_targets(frames)),
        ]
        for position, name in enumerate(COLUMNS):
            values = summaries[:, position]
            if name not in self._columns:
                columns.append(pa.nulls(num_rows, pa.int64() if name in WHOLE_NUMBERS else pa.float64()))
            elif name in WHOLE_NUMBERS:
                known = np.isfinite(values)
                columns.append(arrow_column(np.where(known, values, 0).astype(np.int64), known))
            else:
                # A missing minimum or maximum is null; a NaN in a sum is a finding and stays NaN.
                columns.append(arrow_column(values, ~np.isnan(values) if position in (MIN, MAX) else None))
        if self._has_detail:
            columns.append(_detail_column(frames))
        return self._encode(columns)

    def encode_scalars(self, steps: Sequence[Scalars]) -> bytes:
        """Encode the plain numbers of some steps as one batch."""
        lengths = [len(step.values) for step in steps]
        values = list(chain.from_iterable(step.values.values() for step in steps))
        return self._encode(
            [
                arrow_column(np.repeat(np.array([step.step for step in steps], np.int64), lengths)),
                arrow_column(np.repeat(np.array([step.time for step in steps], np.float64), lengths)),
                self._target_column(list(chain.from_iterable(step.values for step in steps))),
                arrow_column(np.array(values, np.float64)),
            ]
        )

    def opening(self, num_names: int) -> bytes:
        """Return the first bytes of a stream that continues after its first `num_names` names."""
        collected = _Collected()
        writer = pa.ipc.new_stream(collected, self.schema, options=_DELTAS)
        empty: list[Any] = [pa.nulls(0, field.type) for field in self.schema]
        names = self._dictionary.slice(0, num_names)
        no_rows = arrow_column(np.zeros(0, np.int32))
        empty[self.schema.get_field_index("target")] = pa.DictionaryArray.from_arrays(no_rows, names)
        writer.write_batch(pa.RecordBatch.from_arrays(empty, schema=self.schema))
        return collected.take()

    def _encode(self, columns: list[Any]) -> bytes:
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        return self._collected.take()

    def _target_column(self, names: Sequence[str]) -> Any:
        # Most steps have the same targets, and comparing lists of identical string objects takes microseconds.
        if self._last_column is not None and (names is self._last_targets or names == self._last_targets):
            return self._last_column
        fresh = [name for name in dict.fromkeys(names) if name not in self._codes]
        for name in fresh:
            self._codes[name] = len(self._codes)
        if fresh:
            self._dictionary = arrow_strings(list(self._codes))
        indices = np.fromiter((self._codes[name] for name in names), np.int32, len(names))
        self._last_column = pa.DictionaryArray.from_arrays(arrow_column(indices), self._dictionary)
        self._last_targets = names
        return self._last_column


def in_batches(frames: Sequence[Frame]) -> Iterator[list[Frame]]:
    """Group small frames: a batch of a few rows costs as much as one of many."""
    some: list[Frame] = []
    num_rows = 0
    for frame in frames:
        num_rows += len(frame.targets)
        if some and num_rows > MOST_TOGETHER:
            yield some
            some, num_rows = [], len(frame.targets)
        some.append(frame)
    if some:
        yield some


def _detail_column(frames: Sequence[Frame]) -> Any:
    """Return what rows have besides their Summaries, null where there is nothing."""
    num_rows = sum(len(frame.targets) for frame in frames)
    if all(frame.detail is None for frame in frames):
        return pa.nulls(num_rows, pa.binary())
    rows = list(chain.from_iterable(frame.detail or [b""] * len(frame.targets) for frame in frames))
    ends = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    known = np.diff(ends) > 0
    bitmap = None if known.all() else _buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), num_rows, [bitmap, _buffer(ends), pa.py_buffer(b"".join(rows))])


def _targets(frames: Sequence[Frame]) -> Sequence[str]:
    """Concatenate the targets; those of a single frame are not copied."""
    return frames[0].targets if len(frames) == 1 else list(chain.from_iterable(frame.targets for frame in frames))


def _joined(tables: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Concatenate; a single array, which may have very many rows, is not copied."""
    return tables[0] if len(tables) == 1 else np.concatenate(tables)


def arrow_column(values: npt.NDArray[Any], known: npt.NDArray[np.bool_] | None = None) -> Any:
    """Convert an array to an Arrow column, null where `known` is false.

    Unlike `pa.array` this never imports pandas, which would take a quarter of a second in a training process.
    """
    bitmap = None
    if known is not None and not known.all():
        bitmap = _buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(_ARROW_TYPES[values.dtype], len(values), [bitmap, _buffer(values)])


def arrow_strings(names: Sequence[str]) -> Any:
    """Convert names to an Arrow array; like `arrow_column`, without pandas."""
    encoded = [_stored(name) for name in names]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(encoded), _buffer(ends), pa.py_buffer(b"".join(encoded)))


def _stored(name: str) -> bytes:
    """Return a name as stored: a lone surrogate, as in a path with odd bytes, is written as its number."""
    encoded = name.encode("utf8", "backslashreplace")
    if len(encoded) <= MOST_NAME_BYTES:
        return encoded
    return encoded[: MOST_NAME_BYTES - 16].decode(errors="ignore").encode() + b"...%08x" % zlib.crc32(encoded)


def _buffer(values: Any) -> Any:
    return pa.py_buffer(np.ascontiguousarray(values).data)


def whole_array(column: Any, kind: type[np.generic] | np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the numbers of an Arrow array without nulls; like `arrow_column`, without pandas."""
    return np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column)]
