"""Frames as the bytes of an Arrow IPC stream."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vario.records import COLUMNS, MAX, MIN, Frame, Scalars

FORMAT = 1
"""Version of `docs/run-format.md` that is written here."""

WHOLE_NUMBERS = frozenset({"count", "nans", "infs", "zeros"})
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

_DELTAS = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)


class _Collected(io.RawIOBase):
    """A file as far as Arrow is concerned: gathers what one batch writes."""

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

    The first bytes carry the schema; names that are new travel as additions to the dictionary, so the dictionary only
    ever grows within a stream.
    """

    def __init__(self, quantity: str, part: int, session: int, columns: frozenset[str]) -> None:
        self.part = part
        self._columns = columns
        stamp: dict[bytes | str, bytes | str] = {
            "vario.format": str(FORMAT),
            "vario.part": str(part),
            "vario.session": str(session),
        }
        self.schema = pa.schema(SCALAR_FIELDS if quantity == "scalar" else FRAME_FIELDS, metadata=stamp)
        self._collected = _Collected()
        self._writer = pa.ipc.new_stream(self._collected, self.schema, options=_DELTAS)
        self._codes: dict[str, int] = {}
        self._dictionary = pa.array([], pa.string())
        self._last_targets: list[str] = []
        self._last_column: Any = None

    @property
    def num_names(self) -> int:
        """How many names the dictionary holds by now."""
        return len(self._codes)

    def encode_frame(self, frame: Frame) -> bytes:
        """The bytes of one frame."""
        num_rows = len(frame.targets)
        columns = [
            pa.array(np.full(num_rows, frame.step, np.int64)),
            pa.array(np.full(num_rows, frame.micro_step, np.int32)),
            pa.array(np.asarray(frame.order, np.int32)),
            self._target_column(frame.targets),
        ]
        for position, name in enumerate(COLUMNS):
            if name not in self._columns:
                columns.append(pa.nulls(num_rows, pa.int64() if name in WHOLE_NUMBERS else pa.float64()))
            elif name in WHOLE_NUMBERS:
                columns.append(_whole_numbers(frame.summaries[:, position]))
            else:
                # No minimum or maximum is a null; a NaN in a sum is a finding and stays one.
                values = np.ascontiguousarray(frame.summaries[:, position])
                columns.append(pa.array(values, from_pandas=position in (MIN, MAX)))
        return self._encode(columns)

    def encode_scalars(self, scalars: Scalars) -> bytes:
        """The bytes of one step's plain numbers."""
        num_rows = len(scalars.values)
        return self._encode(
            [
                pa.array(np.full(num_rows, scalars.step, np.int64)),
                pa.array(np.full(num_rows, scalars.time, np.float64)),
                self._target_column(list(scalars.values)),
                pa.array(np.fromiter(scalars.values.values(), np.float64, num_rows)),
            ]
        )

    def opening(self, num_names: int) -> bytes:
        """The bytes a stream has to start with when it goes on after its first `num_names` names."""
        collected = _Collected()
        writer = pa.ipc.new_stream(collected, self.schema, options=_DELTAS)
        empty = [pa.array([], field.type) for field in self.schema]
        names = self._dictionary.slice(0, num_names)
        empty[self.schema.get_field_index("target")] = pa.DictionaryArray.from_arrays(pa.array([], pa.int32()), names)
        writer.write_batch(pa.RecordBatch.from_arrays(empty, schema=self.schema))
        return collected.take()

    def _encode(self, columns: list[Any]) -> bytes:
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        return self._collected.take()

    def _target_column(self, targets: Sequence[str]) -> Any:
        # Most steps see the same targets, and comparing lists of the same string objects costs microseconds.
        names = list(targets)
        if self._last_column is not None and names == self._last_targets:
            return self._last_column
        fresh = [name for name in dict.fromkeys(names) if name not in self._codes]
        for name in fresh:
            self._codes[name] = len(self._codes)
        if fresh:
            self._dictionary = pa.array(list(self._codes), pa.string())
        indices = np.fromiter((self._codes[name] for name in names), np.int32, len(names))
        self._last_column = pa.DictionaryArray.from_arrays(indices, self._dictionary)
        self._last_targets = names
        return self._last_column


def _whole_numbers(values: npt.NDArray[np.float64]) -> Any:
    if np.isfinite(values).all():
        return pa.array(values.astype(np.int64))
    known = np.isfinite(values)
    return pa.array(np.where(known, values, 0).astype(np.int64), mask=~known)
