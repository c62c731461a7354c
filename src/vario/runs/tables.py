"""Tables of rows, as `Run` hands them out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from vario.records import COLUMNS


def all_columns(quantity: str) -> list[str]:
    """The columns of a quantity's rows."""
    if quantity == "scalar":
        return ["step", "time", "target", "value"]
    return ["step", "micro_step", "order", "target", *COLUMNS]


def together(tables: dict[str, Any]) -> Any:
    """Tables of several quantities as one, in the order of observation."""
    named = [
        table.add_column(0, "quantity", pa.array([quantity] * table.num_rows, pa.string()))
        for quantity, table in tables.items()
    ]
    return in_order(pa.concat_tables(named, promote_options="default").unify_dictionaries()) if named else pa.table({})


def in_order(table: Any) -> Any:
    """The rows in the order of observation."""
    keys = [name for name in ("step", "micro_step", "order") if name in table.column_names]
    positions = np.lexsort([table.column(name).to_numpy() for name in reversed(keys)])
    return table.take(positions)
