"""The columns of a run's rows and their types: rows are checked here before anything else reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from vario.core.elements.bins import DETAIL
from vario.core.records import COLUMNS

SCALAR = "scalar"
SCALAR_COLUMNS = ("step", "time", "target", "value")
FRAME_COLUMNS = ("step", "micro_step", "order", "target", *COLUMNS)
_WHOLE = frozenset({"count", "nans", "infs", "zeros", "points", "bad"})
_KINDS = {"step": "int64", "first_step": "int64", "last_step": "int64", "micro_step": "int32", "order": "int32"}
_NEVER_NULL = ("step", "first_step", "last_step", "micro_step", "order", "time")
_TYPES: dict[str, Any] = {"int64": pa.int64(), "int32": pa.int32(), "double": pa.float64(), "binary": pa.binary()}
MOST_STEP = (1 << 63) - 1
"""The largest step a column can contain."""


def kind_of(column: str) -> str:
    """Return the type of a column, in Arrow's notation."""
    if column == "target":
        return "dictionary<values=string, indices=int32, ordered=0>"
    if column == DETAIL:
        return "binary"
    return _KINDS.get(column) or ("int64" if column in _WHOLE else "double")


def type_of(column: str) -> Any:
    """Return the Arrow type of a column."""
    return _TYPES.get(kind_of(column)) or pa.dictionary(pa.int32(), pa.string())


def numpy_kind(arrow_type: Any) -> np.dtype[Any]:
    """Return the numpy type of a numeric Arrow type; Arrow's own conversion needs pandas in some releases."""
    name = str(arrow_type)
    return np.dtype({"double": "float64", "float": "float32", "halffloat": "float16"}.get(name, name))


def columns_of(quantity: str) -> tuple[str, ...]:
    """Return the columns of a quantity's rows."""
    return SCALAR_COLUMNS if quantity == SCALAR else FRAME_COLUMNS


def check_schema(schema: Any, needed: Iterable[str]) -> None:
    """Raise ValueError for a file that lacks a column, or has one of the wrong type."""
    for name in needed:
        place = schema.get_field_index(name)
        if place < 0:
            raise ValueError(f"it has no column '{name}'")
        if str(schema.field(place).type) != kind_of(name):
            raise ValueError(f"column '{name}' is {schema.field(place).type}, expected {kind_of(name)}")


def check_rows(table: Any) -> None:
    """Raise ValueError for rows without a step or time, or with an impossible step."""
    for name in _NEVER_NULL:
        if name not in table.column_names:
            continue
        column = table.column(name)
        if column.null_count:
            raise ValueError(f"a row has no {name}")
        for chunk in column.chunks if kind_of(name) == "int64" else ():
            steps = np.frombuffer(chunk.buffers()[1], np.int64)[chunk.offset : chunk.offset + len(chunk)]
            if len(steps) and not 0 <= steps.min() <= steps.max() <= MOST_STEP:
                raise ValueError(f"a row has an impossible {name}: {steps.min()} or {steps.max()}")
