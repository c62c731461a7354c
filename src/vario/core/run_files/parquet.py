"""Reads Parquet files of a run within a memory limit, whatever their metadata claims.

A few bytes of Parquet can expand to gigabytes: a well-compressed page, or repeated rows. The footer states how much a
file contains, but it may be wrong about its pages, so they are checked before Arrow allocates memory for them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vario.core.errors import RunCorrupt
from vario.core.run_files import open_file
from vario.core.run_files.mirrors import pread
from vario.core.varint import read_varint

MOST_READ_BYTES = 128 << 20
"""The memory limit for one file. A writer closes a part at 32 MB, or at 110 MB after a full disk."""
MOST_NAME_BYTES = 32 << 20
"""The memory limit for the names of one file: a million targets have about 40 MB, a hundred thousand 4 MB."""
MOST_FOOTER_BYTES = 32 << 20
MOST_COLUMNS = 1024
MOST_GROUPS = 1 << 16

REST = "Its rows are lost. Move the file away to read the rest of the run."

_TAIL = struct.Struct("<I4s")
_EXPANSION = {"UNCOMPRESSED": 1, "SNAPPY": 32, "LZ4": 256, "LZ4_RAW": 256, "GZIP": 1100, "ZSTD": 40_000}
"""By codec: the most bytes that one byte can expand to."""
_SMALL_PAGES_BYTES = 1 << 20
_STRING_ENCODINGS = (0, 2, 3, 8)
"""PLAIN, PLAIN_DICTIONARY, RLE and RLE_DICTIONARY: in others a string may refer to an earlier one."""
_HEADER_BYTES = 256
_WHOLE_NUMBER = 0x15
"""The first byte of the next field of a Thrift structure if it is an i32."""
_MOST_HEADER_BYTES = 1 << 20


def read_footer(path: Path, depth: int) -> Any:
    """Read and check the footer of a file; raises FileNotFoundError if it no longer exists."""
    with open_file(path, depth) as file, _told(path):
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL.size))
        tail = file.read(_TAIL.size) or b""
        if len(tail) < _TAIL.size or tail[4:] != b"PAR1":
            raise ValueError("it does not end like a Parquet file")
        if _TAIL.unpack(tail)[0] > min(MOST_FOOTER_BYTES, size):
            raise ValueError("its footer is larger than possible")
        footer = pq.read_metadata(file)
        _check_footer(path, footer)
    return footer


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn any exception from a damaged file into an error that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise unreadable(path, error) from error


def _check_footer(path: Path, footer: Any) -> None:
    if footer.num_columns > MOST_COLUMNS or footer.num_row_groups > MOST_GROUPS:
        raise ValueError(f"{footer.num_columns:,} columns, more than rows have")
    if footer.num_columns and any(
        footer.schema.column(index).max_repetition_level for index in range(footer.num_columns)
    ):
        raise ValueError("a column contains lists, which no run has")
    if footer.num_rows < 0 or len(set(footer.schema.names)) < footer.num_columns:
        raise ValueError("its footer is inconsistent")


def read_groups(
    path: Path, depth: int, footer: Any, groups: Sequence[int], columns: Sequence[str], use_threads: bool = False
) -> Any:
    """Read selected columns of selected row groups; raises RunCorrupt, or FileNotFoundError if it no longer exists."""
    with open_file(path, depth) as file, _told(path):
        check_groups(path, file, footer, groups, columns)
        with pq.ParquetFile(file, metadata=footer, pre_buffer=False) as opened:
            table = opened.read_row_groups(list(groups), columns=list(columns), use_threads=use_threads)
        _check_names(table)
    return table


def read_whole(path: Path, depth: int) -> Any:
    """Read all rows of a file."""
    footer = read_footer(path, depth)
    return read_groups(path, depth, footer, range(footer.num_row_groups), footer.schema.names)


def check_file(path: Path, depth: int, footer: Any, columns: Sequence[str]) -> None:
    """Raise RunCorrupt for a file that exceeds the memory limit, before something else reads it."""
    with open_file(path, depth) as file, _told(path):
        check_groups(path, file, footer, range(footer.num_row_groups), columns)


def check_groups(path: Path, file: Any, footer: Any, groups: Sequence[int], columns: Sequence[str]) -> None:
    """Raise RunCorrupt for row groups that exceed the memory limit, by the footer and by the pages."""
    places = [place for place, name in enumerate(footer.schema.names) if name in columns]
    total = names = 0
    for group in groups:
        rows = footer.row_group(group)
        for place in places:
            chunk = rows.column(place)
            if chunk.num_values != rows.num_rows or chunk.num_values < 0:
                raise ValueError("a column has more values than rows")
            # A string is read as an index into a dictionary.
            is_text = chunk.physical_type == "BYTE_ARRAY"
            total += chunk.num_values * (4 if is_text else 8)
            pages = _pages_bytes(path, file, chunk, is_text)
            names += pages if is_text else 0
            if total + names > MOST_READ_BYTES or names > MOST_NAME_BYTES or pages > MOST_READ_BYTES:
                raise RunCorrupt(
                    f"{path}: not read: its rows would take more than the {MOST_READ_BYTES >> 20} MB of memory that a "
                    f"part of a run can take; vario does not write such files"
                )


def _pages_bytes(path: Path, file: Any, chunk: Any, is_text: bool) -> int:
    """The most memory the pages of a column can take."""
    packed = chunk.total_compressed_size
    expansion = _EXPANSION.get(chunk.compression, 1 << 20)
    if packed * expansion <= _SMALL_PAGES_BYTES and not is_text:
        return int(packed * expansion)
    first = chunk.dictionary_page_offset
    at = chunk.data_page_offset if not first or first <= 0 else min(first, chunk.data_page_offset)
    if at < 0 or packed < 0:
        raise ValueError("a column is outside the file")
    total, end = 0, at + packed
    while at < end and total <= MOST_READ_BYTES:
        raw = pread(file, _HEADER_BYTES, at)
        if not is_text and (sizes := _sizes(raw)) is not None and end - at - sizes[1] <= _HEADER_BYTES:
            # The usual case: one page, and no room for another that matters.
            return total + sizes[0] + _HEADER_BYTES * expansion
        header = _page_header(file, at, raw)
        if header is None or header.unpacked < 0 or header.packed < 0:
            raise ValueError("a page has no header")
        if is_text and header.encoding not in _STRING_ENCODINGS:
            raise ValueError("names in an encoding that vario does not use")
        total += header.unpacked
        at += header.size + header.packed
    return total


def _sizes(raw: bytes) -> tuple[int, int] | None:
    """The memory of a page and its bytes in the file, if its header begins with them, as with all known writers."""
    try:
        if raw[0] != _WHOLE_NUMBER:
            return None
        _, at = read_varint(raw, 1)
        if raw[at] != _WHOLE_NUMBER:
            return None
        unpacked, at = read_varint(raw, at + 1)
        if raw[at] != _WHOLE_NUMBER:
            return None
        packed, at = read_varint(raw, at + 1)
    except (IndexError, ValueError):
        return None
    return None if (unpacked | packed) & 1 else (unpacked >> 1, packed >> 1)


class _PageHeader:
    """Sizes of one page, from its header."""

    def __init__(self, fields: dict[int, Any], size: int) -> None:
        self.unpacked = int(fields.get(2, -1))
        self.packed = int(fields.get(3, -1))
        self.size = size
        described = fields.get(5) or fields.get(7) or fields.get(8) or {}
        self.encoding = described.get(4 if 8 in fields else 2, 0)


def _page_header(file: Any, at: int, raw: bytes) -> _PageHeader | None:
    """Parse the header of the page that begins there; `raw` are its first bytes."""
    while True:
        try:
            fields, size = _struct(raw, 0, 0)
            return _PageHeader(fields, size)
        except IndexError:
            # It contains a smallest and a largest value, which may be long.
            length = 16 * len(raw)
            if not raw or length > _MOST_HEADER_BYTES:
                return None
            longer = pread(file, length, at)
            if len(longer) <= len(raw):
                return None
            raw = longer
        except (ValueError, TypeError):
            return None


def _struct(raw: bytes, at: int, level: int) -> tuple[dict[int, Any], int]:
    """Parse numbers and nested structures of a compact Thrift structure, by field; skips the rest."""
    if level > 4:
        raise ValueError("nested too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while (head := raw[at]) != 0:
        at += 1
        kind, step = head & 0x0F, head >> 4
        if step:
            number += step
        else:
            found, at = read_varint(raw, at)
            number = (found >> 1) ^ -(found & 1)
        if kind in (1, 2):
            continue
        if kind == 3:
            at += 1
        elif kind in (4, 5, 6):
            found, at = read_varint(raw, at)
            fields[number] = (found >> 1) ^ -(found & 1)
        elif kind == 7:
            at += 8
        elif kind == 8:
            length, at = read_varint(raw, at)
            at += length
        elif kind == 12:
            fields[number], at = _struct(raw, at, level + 1)
        else:
            raise ValueError("a field type that no page header has")
    return fields, at + 1


def _check_names(table: Any) -> None:
    """Check that names are text, and that every row has one."""
    for chunk in _name_chunks(table):
        if not isinstance(chunk, pa.DictionaryArray):
            raise ValueError("its names are not dictionary-encoded")
        # Arrow does not check that a row's name is in the dictionary, and would read beyond it.
        chunk.validate(full=True)
        if chunk.null_count or chunk.dictionary.null_count:
            raise ValueError("a row has no name")


def _name_chunks(table: Any) -> Iterator[Any]:
    if "target" in table.column_names:
        yield from table.column("target").chunks


def unreadable(path: Path, error: BaseException) -> RunCorrupt:
    """Return the error for a file that Arrow cannot read."""
    return RunCorrupt(f"{path}: not readable as Parquet: {error}. {REST}")
