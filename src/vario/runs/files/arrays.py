"""Arrow columns as numpy arrays and back, without pandas: pyarrow's own conversions import it, which is slow."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vario.core.run_files.columns import numpy_kind


def numbers(column: Any) -> npt.NDArray[Any]:
    """Return the numbers of a column; if some are null, as doubles with NaN."""
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            return numbers(column.chunk(0))
        pieces = [numbers(chunk) for chunk in column.chunks]
        return np.concatenate(pieces) if pieces else np.zeros(0, numpy_kind(column.type))
    kind = numpy_kind(column.type)
    bitmap, values = column.buffers()
    found = np.frombuffer(values, kind)[column.offset : column.offset + len(column)] if values else np.zeros(0, kind)
    if not column.null_count:
        return found
    known = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    known = known[column.offset : column.offset + len(column)].astype(np.bool_)
    return np.where(known, found, np.nan) if len(found) else np.full(len(column), np.nan)


def place_of(name: str, names: Any) -> int:
    """Return the index of a name in an Arrow array; -1 if it is absent."""
    encoded = name.encode()
    ends = np.array([0, len(encoded)], np.int32)
    wanted = pa.StringArray.from_buffers(1, pa.py_buffer(ends.data), pa.py_buffer(encoded))[0]
    return int(names.index(wanted).as_py())


def take(table: Any, rows: npt.NDArray[np.int64]) -> Any:
    """Return the selected rows of a table."""
    whole = np.ascontiguousarray(rows, np.int64)
    return table.take(pa.Array.from_buffers(pa.int64(), len(whole), [None, pa.py_buffer(whole.data)]))
