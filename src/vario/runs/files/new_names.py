"""Rows of older runs under the names that their targets have now."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from vario.core.old_names import TARGET_ENDS, new_target


def with_new_names(quantity: str, table: Any) -> Any:
    """A table whose targets have the names of this version; the same one where they have them already."""
    place = table.schema.get_field_index("target")
    if quantity not in TARGET_ENDS or place < 0:
        return table
    column = table.column(place)
    old = TARGET_ENDS[quantity][0].encode()
    # The bytes of all names are searched at once: most runs have no old ones, and may have many names.
    if not any(old in _bytes_of(chunk.dictionary) for chunk in column.chunks):
        return table
    chunks = [
        pa.DictionaryArray.from_arrays(
            chunk.indices, pa.array([new_target(quantity, name) for name in chunk.dictionary.to_pylist()], pa.string())
        )
        for chunk in column.chunks
    ]
    return table.set_column(place, table.schema.field(place), pa.chunked_array(chunks))


def _bytes_of(names: Any) -> bytes:
    raw = names.buffers()[2]
    return b"" if raw is None else bytes(raw.to_pybytes())
