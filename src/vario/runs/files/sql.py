"""SQL over a run: each quantity is a view over the Parquet parts and the live rows of all ranks."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from vario.core.elements.bins import COUNTED, QUANTITY
from vario.core.errors import ConfigError, MissingExtra
from vario.core.old_names import TARGET_ENDS
from vario.core.run_files.columns import SCALAR, columns_of
from vario.runs.files.bin_rows import bin_table
from vario.runs.files.row_files import Part, scanned
from vario.runs.files.store_reader import QuantityReader

DERIVED = {
    "norm": "sqrt(sum_squares)",
    "mean": "sum / count",
    "rms": "sqrt(sum_squares / count)",
    "std": "sqrt(greatest(sum_squares / count - (sum / count) ** 2, 0))",
    "absmax": "greatest(abs(min), abs(max))",
}
"""Statistics that every view has as columns, after the files' own."""


PARAMS = "params"
"""The view of hyper-parameters."""
THINNED = "thinned"
"""The view of what was downsampled."""
LIMITS = ("memory_limit = '1GB'", "threads = 2", "temp_directory = ''", "enable_external_access = false")
"""A query cannot access the machine: no files, no network, no extensions. The order matters."""
LATER_LIMITS = ("autoinstall_known_extensions", "autoload_known_extensions", "python_enable_replacements")
"""Also disabled, if this release of DuckDB has them."""


def ask(
    query: str,
    readers: Mapping[str, Sequence[tuple[int, QuantityReader]]],
    sessions: Sequence[Mapping[str, Any]],
    params: Mapping[str, Any],
) -> Any:
    """Run a query and return a pyarrow Table; `readers` are the ranks of each quantity."""
    try:
        import duckdb
    except ImportError:
        raise MissingExtra("sql", "sql") from None
    with duckdb.connect() as connection:
        for limit in LIMITS:
            connection.execute(f"set {limit}")
        for name in LATER_LIMITS:
            with contextlib.suppress(duckdb.Error):
                connection.execute(f"set {name} = false")
        try:
            for quantity, ranks in readers.items():
                _make_view(connection, quantity, ranks, sessions)
            if QUANTITY in query and QUANTITY not in readers:
                counted = {name: ranks for name, ranks in readers.items() if name in COUNTED}
                connection.register(QUANTITY, bin_table(counted, sessions))
            if THINNED not in readers and THINNED in query:
                connection.register(THINNED, _thinned_table(readers, sessions))
            if PARAMS not in readers:
                connection.register(PARAMS, _params_table(params))
            connection.execute("set lock_configuration = true")
            answer = connection.sql(query)
            if answer is None:
                raise ConfigError("sql: this statement returns no rows. Start with select.")
            return answer.to_arrow_table()
        except duckdb.Error as error:
            raise ConfigError(f"sql: {error}") from error


def _thinned_table(
    readers: Mapping[str, Sequence[tuple[int, QuantityReader]]], sessions: Sequence[Mapping[str, Any]]
) -> Any:
    """Ranges of steps of which only few rows are left: rank, quantity, first and last step."""
    import pyarrow as pa

    rows = [
        (rank, quantity, first, last)
        for quantity, ranks in readers.items()
        for rank, reader in ranks
        for first, last in reader.thinned(sessions)
    ]
    kinds = {"rank": pa.int64(), "quantity": pa.string(), "first_step": pa.int64(), "last_step": pa.int64()}
    columns = zip(*rows, strict=True) if rows else [()] * len(kinds)
    return pa.table({name: pa.array(list(column), kinds[name]) for name, column in zip(kinds, columns, strict=True)})


def _params_table(params: Mapping[str, Any]) -> Any:
    """Hyper-parameters: name, value as text, and as a number where it is one."""
    import pyarrow as pa

    values = list(params.values())
    texts = [value if isinstance(value, str) or value is None else json.dumps(value) for value in values]
    are_numbers = [isinstance(value, (int, float)) and not isinstance(value, bool) for value in values]
    figures = [float(value) if is_one else None for value, is_one in zip(values, are_numbers, strict=True)]
    return pa.table(
        {
            "name": pa.array(list(params), pa.string()),
            "value": pa.array(texts, pa.string()),
            "number": pa.array(figures, pa.float64()),
        }
    )


def quoted(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


def _make_view(
    connection: Any, quantity: str, ranks: Sequence[tuple[int, QuantityReader]], sessions: Sequence[Mapping[str, Any]]
) -> None:
    selects = []
    for rank, reader in ranks:
        # Group parts with the same cut-off step into one table: thousands of parts would be thousands of terms in the
        # query.
        parts: dict[int | None, list[Part]] = {}
        for row_file, limit in reader.shown(sessions):
            if isinstance(row_file, Part):
                parts.setdefault(limit, []).append(row_file)
            else:
                name = f"{quantity}_rank{rank}_part{row_file.number}"
                rows = row_file.rows.select(list(columns_of(quantity)))
                selects.append(_select(connection, quantity, name, rows, rank, limit))
        for limit, found in parts.items():
            name, rows = f"{quantity}_rank{rank}_parts_{limit}", scanned(found, columns_of(quantity))
            selects.append(_select(connection, quantity, name, rows, rank, limit))
    if not selects:
        return
    derived = "" if quantity == SCALAR else "".join(f", {text} as {name}" for name, text in DERIVED.items())
    connection.execute(f"create view {quoted(quantity)} as select *{derived} from ({' union all '.join(selects)})")


def _select(connection: Any, quantity: str, name: str, rows: Any, rank: int, limit: int | None) -> str:
    connection.register(name, rows)
    kept = "" if limit is None else f" where step < {int(limit)}"
    target = "target::varchar"
    if quantity in TARGET_ENDS:
        old, new = TARGET_ENDS[quantity]
        target = f"regexp_replace({target}, '{old}$', '{new}')"
    return f"select {int(rank)} as rank, * replace ({target} as target) from {quoted(name)}{kept}"
