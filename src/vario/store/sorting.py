"""Sort rows from the order of writing to the order of reading."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vario.core.run_files.columns import numpy_kind
from vario.store.encoding import arrow_column, arrow_strings, whole_array

ROWS_PER_GROUP = 8192
"""Reading one series decodes one such group per part; smaller groups compress worse and enlarge the footer."""


def in_target_order(table: Any) -> Any:
    """Sort rows by target, step and micro-step."""
    table = table.unify_dictionaries().combine_chunks()
    target = table.column("target").combine_chunks()
    names = target.dictionary.to_pylist()
    alphabetical = sorted(range(len(names)), key=names.__getitem__)
    rank_of_code = np.empty(len(names), np.int32)
    rank_of_code[alphabetical] = np.arange(len(names), dtype=np.int32)
    codes = rank_of_code[whole_array(target.indices, np.int32)]
    keys = [codes, whole_array(table.column("step").combine_chunks(), np.int64)]
    if "micro_step" in table.column_names:
        keys.append(whole_array(table.column("micro_step").combine_chunks(), np.int32))
    ordered_names = arrow_strings([names[code] for code in alphabetical])
    ordered = pa.DictionaryArray.from_arrays(arrow_column(codes), ordered_names)
    position = table.schema.get_field_index("target")
    table = table.set_column(position, table.schema.field(position), ordered)
    num = _even_frame(keys)
    if num is None:
        return table.take(arrow_column(np.lexsort(keys[::-1])))
    return _turned(table, np.argsort(codes[:num]).astype(np.int64), len(codes) // num)


def _even_frame(keys: list[Any]) -> int | None:
    """Return the rows per frame if all frames have the same targets and are in step order; otherwise None."""
    codes, steps = keys[0], keys[1]
    if not len(codes):
        return None
    # The first frame ends where the step changes.
    changes = np.flatnonzero(np.logical_or.reduce([key[1:] != key[:-1] for key in keys[1:]]))
    num = int(changes[0]) + 1 if len(changes) else len(codes)
    if len(codes) % num or len(np.unique(codes[:num])) < num:
        return None
    moments = [key.reshape(-1, num) for key in keys]
    is_even = (moments[0] == moments[0][0]).all() and all((key == key[:, :1]).all() for key in moments[1:])
    if not is_even:
        return None
    firsts = steps[::num] if len(keys) == 2 else steps[::num] * (1 + int(keys[2].max())) + keys[2][::num]
    return num if (np.diff(firsts) > 0).all() else None


def _turned(table: Any, order: npt.NDArray[np.int64], num_frames: int) -> Any:
    """Reorder rows by frame into rows by target: sequential reads, several times as fast as picking each row."""
    rows: Any = None
    columns = []
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        values = column.indices if name == "target" else column
        if values.null_count or pa.types.is_binary(values.type):
            if rows is None:
                rows = arrow_column((order[:, None] + len(order) * np.arange(num_frames)[None, :]).reshape(-1))
            columns.append(column.take(rows))
            continue
        kind = numpy_kind(values.type)
        turned = np.ascontiguousarray(whole_array(values, kind).reshape(num_frames, -1)[:, order].T).reshape(-1)
        found = arrow_column(turned)
        columns.append(pa.DictionaryArray.from_arrays(found, column.dictionary) if name == "target" else found)
    return pa.Table.from_arrays(columns, schema=table.schema)
