"""TensorBoard event files, written and read without TensorBoard.

An event file is a chain of TFRecords, each one a protobuf `Event` between checksums (CRC-32C). Readers skip what they
do not know and stop at a wrong checksum, so a writer only has to append. One event contains one number, as in files of
TensorBoard's own writer. The bytes of all events of one step are built at once: for each set of tags there is a
template in which only the time, the values and the checksums change, and a checksum is linear in the bits it covers.
"""

from __future__ import annotations

import functools
import itertools
import os
import socket
import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vario.core.varint import read_varint

Words = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]

TEMPLATES_KEPT = 32
"""The number of sets of tags whose templates are cached."""

LANE = 256
"""Bytes that one lane of a long checksum covers."""

_numbers = itertools.count()


class EventFile:
    """One TensorBoard event file, written by appending."""

    def __init__(self, folder: Path, started: float, suffix: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in name order, so numbers have a fixed number of digits.
        stem = f"events.out.tfevents.{int(started):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers):06d}"
        self.path = folder / f"{stem}{suffix}"
        self._file = open(self.path, "xb")  # noqa: SIM115 - lives as long as this object
        self._templates: OrderedDict[tuple[tuple[str, ...], int], _Template] = OrderedDict()
        self._file.write(_record(_moment(started, 0) + _field(3, b"brain.Event:2")))

    def add_scalars(self, tags: Sequence[str], values: npt.ArrayLike, step: int, time: float) -> None:
        """Append one number for each tag."""
        floats = _as_float32(values)
        if len(tags) != len(floats):
            raise ValueError(f"{len(tags)} tags for {len(floats)} values")
        if not len(floats):
            return
        moment = _moment(time, step)
        key = (tuple(tags), len(moment))
        template = self._templates.pop(key, None) or _make_template(key[0], len(moment))
        self._templates[key] = template
        if len(self._templates) > TEMPLATES_KEPT:
            self._templates.popitem(last=False)
        self._file.write(template.fill(moment, floats).data)

    def add_image(self, tag: str, png: bytes, width: int, height: int, step: int, time: float) -> None:
        """Append one image."""
        dimensions = _number(1, height) + _number(2, width) + _number(3, 4)  # 4: colours with transparency
        value = _field(1, tag.encode()) + _field(4, dimensions + _field(4, png))
        self._file.write(_record(_moment(time, step) + _field(5, _field(1, value))))

    def add_text(self, tag: str, text: str, step: int, time: float) -> None:
        """Append one text, shown on TensorBoard's TEXT page as Markdown."""
        metadata = _field(1, _field(1, b"text"))  # the plug-in that shows it
        shape = _field(2, _field(2, _number(1, 1)))
        tensor = _number(1, 7) + shape + _field(8, text.encode())  # 7: strings
        value = _field(1, tag.encode()) + _field(9, metadata) + _field(8, tensor)
        self._file.write(_record(_moment(time, step) + _field(5, _field(1, value))))

    def flush(self) -> None:
        """Flush to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


@dataclass(frozen=True)
class _Template:
    """The events of one step, except time, values and checksums."""

    content: Bytes
    moment_at: Positions
    """The offset of each event's time."""
    value_at: Positions
    checksum_at: Positions
    tag_lengths: Positions
    """Bytes between the time and the value."""
    tag_remainders: Words
    """What these bytes contribute to the checksum."""

    def fill(self, moment: bytes, values: npt.NDArray[np.float32]) -> Bytes:
        """Return the bytes of all events; reuses one array."""
        self.content[self.moment_at] = np.frombuffer(moment, np.uint8)
        self.content[self.value_at] = values.view(np.uint8).reshape(-1, 4)
        states = [_advance(0xFFFFFFFF, moment)]
        for _ in range(int(self.tag_lengths.max())):
            states.append(_advance(states[-1], b"\0"))
        before = np.array(states, np.uint32)[self.tag_lengths] ^ self.tag_remainders
        checksums = _masked(_advance_words(before, values.view(np.uint32)) ^ np.uint32(0xFFFFFFFF))
        self.content[self.checksum_at] = checksums.astype("<u4").view(np.uint8).reshape(-1, 4)
        return self.content


def _make_template(tags: Sequence[str], moment_length: int) -> _Template:
    blank = bytes(moment_length)
    middles = []
    for tag in tags:
        name = _field(1, tag.encode())
        value_length = len(name) + 5
        value_head = b"\x0a" + _varint(value_length)
        summary_head = b"\x2a" + _varint(len(value_head) + value_length)
        middles.append(summary_head + value_head + name + b"\x15")  # 0x15: the simple value follows
    lengths = np.array([len(middle) for middle in middles], np.int64)
    heads = {length: _record_head(moment_length + length + 4) for length in set(lengths.tolist())}
    joined = b"".join(heads[len(middle)] + blank + middle + bytes(8) for middle in middles)
    ends = np.cumsum(lengths + (12 + moment_length + 8))
    values = ends - 8
    moments = values - lengths - moment_length
    width = int(lengths.max())
    padded = b"".join(middle.rjust(width, b"\0") for middle in middles)
    return _Template(
        np.frombuffer(bytearray(joined), np.uint8),
        moments[:, None] + np.arange(moment_length),
        values[:, None] + np.arange(4),
        values[:, None] + np.arange(4, 8),
        lengths,
        _remainders(np.frombuffer(padded, np.uint8).reshape(-1, width)),
    )


def _as_float32(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore", invalid="ignore"):  # beyond float32 is inf, as in TensorBoard's own writer
        return np.ascontiguousarray(values, dtype="<f4").reshape(-1)


# -- protobuf ------------------------------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF  # a negative number is written as its 64-bit complement
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _moment(time: float, step: int) -> bytes:
    """What every event starts with: its wall time and its step."""
    return b"\x09" + struct.pack("<d", time) + _number(2, step)


def fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a protobuf message: an integer, or bytes."""
    at = 0
    while at < len(content):
        key, at = _read_varint(content, at)
        kind = key & 7
        if kind == 0:
            value, at = _read_varint(content, at)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = _read_varint(content, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"protobuf: unknown wire type: {kind}")
        if at + length > len(content):
            raise ValueError("protobuf: the message ends inside a field")
        yield key >> 3, content[at : at + length]
        at += length


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    try:
        return read_varint(content, at)
    except IndexError:
        raise ValueError("protobuf: the message ends inside a number") from None


# -- TFRecord ------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _record_head(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", _mask(crc32c(packed)))


def _record(content: bytes) -> bytes:
    return _record_head(len(content)) + content + struct.pack("<I", _mask(crc32c(content)))


def read_records(content: bytes) -> Iterator[bytes]:
    """Yield the records of a file up to its end, or up to the first that is truncated or has a wrong checksum."""
    at = 0
    while at + 12 <= len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        end = at + 12 + length
        if _record_head(length) != content[at : at + 12] or end + 4 > len(content):
            return
        record = content[at + 12 : end]
        if struct.pack("<I", _mask(crc32c(record))) != content[end : end + 4]:
            return
        yield record
        at = end + 4


def _mask(checksum: int) -> int:
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _masked(checksums: Words) -> Words:
    turned = checksums >> np.uint32(15) | checksums << np.uint32(17)
    return turned + np.uint32(0xA282EAD8)  # overflow is intended


# -- CRC-32C -------------------------------------------------------------------------------------------------------


def _make_tables() -> list[Words]:
    """Table `n` advances a state by its lowest byte and `n` bytes of zero."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & np.uint32(1), table >> np.uint32(1) ^ np.uint32(0x82F63B78), table >> np.uint32(1))
    tables = [table]
    for _ in range(3):
        tables.append(table[tables[-1] & np.uint32(0xFF)] ^ tables[-1] >> np.uint32(8))
    return tables


_TABLES = _make_tables()
_TABLE: list[int] = _TABLES[0].tolist()


def crc32c(content: bytes) -> int:
    """Return the CRC-32C (Castagnoli) checksum of some bytes."""
    if len(content) < 4 * LANE:
        return _advance(0xFFFFFFFF, content) ^ 0xFFFFFFFF
    # Starting from ones is the same as starting from zero with the first four bytes inverted, and from zero, leading
    # zeros change nothing: so the bytes can be split into lanes of equal width that are processed in parallel.
    num_lanes = -(-len(content) // LANE)
    padded = np.zeros(num_lanes * LANE, np.uint8)
    start = len(padded) - len(content)
    padded[start:] = np.frombuffer(content, np.uint8)
    padded[start : start + 4] ^= 0xFF
    lowest, low, high, highest = _lane_tables()
    state = 0
    for remainder in _remainders(padded.reshape(num_lanes, LANE)).tolist():
        state = (
            lowest[state & 0xFF] ^ low[state >> 8 & 0xFF] ^ high[state >> 16 & 0xFF] ^ highest[state >> 24] ^ remainder
        )
    return state ^ 0xFFFFFFFF


@functools.cache
def _lane_tables() -> list[list[int]]:
    """For each byte of a state: what it becomes after a lane of zeros."""
    states = np.arange(256, dtype=np.uint32) << np.arange(0, 32, 8, dtype=np.uint32)[:, None]
    for _ in range(LANE):
        states = _TABLES[0][states & np.uint32(0xFF)] ^ states >> np.uint32(8)
    tables: list[list[int]] = states.tolist()
    return tables


def _advance(state: int, content: bytes) -> int:
    for byte in content:
        state = _TABLE[(state ^ byte) & 0xFF] ^ state >> 8
    return state


def _advance_words(states: Words, words: Words) -> Words:
    """Each state advanced by the four bytes of its little-endian word."""
    mixed = states ^ words
    low = _TABLES[3][mixed & np.uint32(0xFF)] ^ _TABLES[2][mixed >> np.uint32(8) & np.uint32(0xFF)]
    high = _TABLES[1][mixed >> np.uint32(16) & np.uint32(0xFF)] ^ _TABLES[0][mixed >> np.uint32(24)]
    advanced: Words = low ^ high
    return advanced


def _remainders(rows: Bytes) -> Words:
    """The state that each row of bytes leads to from zero."""
    states = np.zeros(len(rows), np.uint32)
    for column in np.ascontiguousarray(rows.T):
        states = _TABLES[0][(states ^ column) & np.uint32(0xFF)] ^ states >> np.uint32(8)
    return states
