"""Tables of rows, as `Run` returns them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from vario.core.records import COLUMNS, merge
from vario.core.run_files.columns import kind_of
from vario.runs.files.arrays import numbers, take
from vario.runs.files.store_reader import summaries

LIMITS = -(2**62), 2**62
IS_COUNT = np.array([kind_of(name) == "int64" for name in COLUMNS])


def all_columns(quantity: str) -> list[str]:
    """Return the columns of a quantity's rows."""
    if quantity == "scalar":
        return ["step", "time", "target", "value"]
    return ["step", "micro_step", "order", "target", *COLUMNS]


def together(tables: dict[str, Any]) -> Any:
    """Concatenate tables of several quantities, in the order of observation."""
    named = [
        table.add_column(0, "quantity", pa.array([quantity] * table.num_rows, pa.string()))
        for quantity, table in tables.items()
    ]
    return in_order(pa.concat_tables(named, promote_options="default").unify_dictionaries()) if named else pa.table({})


def in_order(table: Any) -> Any:
    """Sort rows in the order of observation."""
    keys = [name for name in ("step", "micro_step", "order") if name in table.column_names]
    positions = np.lexsort([numbers(table.column(name)) for name in reversed(keys)])
    return take(table, positions)


def merge_ranks(tables: Mapping[int, Any], part_of: Callable[[str, int], int | None] | None) -> Any:
    """One row per target and micro-step of tables of one step: parts add up, ranks with the same `part_of` a target
    count once and those of part -1 not at all; without it each rank's rows are its own and all add up."""
    rows: dict[tuple[int, str], int] = {}
    orders: dict[int, int] = {}
    seen: dict[tuple[str, int], int] = {}
    kept, groups = [], []
    for rank, table in sorted(tables.items()):
        keys = zip(*(table.column(name).to_pylist() for name in ("micro_step", "target", "order")), strict=True)
        for position, (micro_step, target, order) in enumerate(keys):
            part = None if part_of is None else part_of(target, rank)
            if part is not None and (part < 0 or seen.setdefault((target, part), rank) != rank):
                continue
            group = rows.setdefault((micro_step, target), len(rows))
            orders[group] = min(order, orders.get(group, order))
            kept.append((rank, position))
            groups.append(group)
    every = {rank: summaries(table) for rank, table in tables.items()}
    merged = merge(np.stack([every[rank][position] for rank, position in kept]), np.array(groups), len(rows))
    # Sums of invalid counts in a damaged file may not be whole numbers.
    np.clip(merged, *LIMITS, out=merged, where=IS_COUNT)
    first = next(iter(tables.values()))
    columns: dict[str, Any] = {
        "step": np.full(len(rows), first.column("step")[0].as_py()),
        "micro_step": [micro_step for micro_step, _ in rows],
        "order": [orders[group] for group in range(len(rows))],
        "target": [target for _, target in rows],
        **{name: merged[:, at] for at, name in enumerate(COLUMNS)},
    }
    names = [name for name in first.column_names if name in columns]
    arrays = [pa.array(columns[name], from_pandas=True) for name in names]
    types = [pa.string() if name == "target" else first.schema.field(name).type for name in names]
    return in_order(pa.table([array.cast(kind) for array, kind in zip(arrays, types, strict=True)], names=names))
