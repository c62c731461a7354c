"""SQL over a run: each quantity is a view over the Parquet parts and the newest rows of all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from vario.core.errors import ConfigError, MissingExtra
from vario.core.run_files.columns import SCALAR, columns_of
from vario.runs.files.row_files import Part, scanned
from vario.runs.files.store_reader import QuantityReader

DERIVED = {
    "norm": "sqrt(sum_squares)",
    "mean": "sum / count",
    "rms": "sqrt(sum_squares / count)",
    "std": "sqrt(greatest(sum_squares / count - (sum / count) ** 2, 0))",
    "absmax": "greatest(abs(min), abs(max))",
}
"""Statistics that every view has as columns, after those of the files."""


LIMITS = ("memory_limit = '1GB'", "threads = 2", "temp_directory = ''", "enable_external_access = false")
"""Nothing of the machine can be reached from a query: no file, no network, no extension. In this order."""
LATER_LIMITS = ("autoinstall_known_extensions", "autoload_known_extensions", "python_enable_replacements")
"""Also off, where this release of DuckDB knows them."""


def ask(
    query: str,
    readers: Mapping[str, Sequence[tuple[int, QuantityReader]]],
    sessions: Sequence[Mapping[str, Any]],
) -> Any:
    """The answer as a pyarrow Table; `readers` gives the ranks of each quantity."""
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
            connection.execute("set lock_configuration = true")
            answer = connection.sql(query)
            if answer is None:
                raise ConfigError("sql: this statement gives no rows; start with select")
            return answer.to_arrow_table()
        except duckdb.Error as error:
            raise ConfigError(f"sql: {error}") from error


def quoted(name: str) -> str:
    """An identifier, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def _make_view(
    connection: Any, quantity: str, ranks: Sequence[tuple[int, QuantityReader]], sessions: Sequence[Mapping[str, Any]]
) -> None:
    selects = []
    for rank, reader in ranks:
        # Parts of which the same is taken back are one table: thousands of them would be as many terms of the query.
        parts: dict[int | None, list[Part]] = {}
        for piece, limit in reader.shown(sessions):
            if isinstance(piece, Part):
                parts.setdefault(limit, []).append(piece)
            else:
                selects.append(
                    _select(connection, f"{quantity}_rank{rank}_part{piece.number}", piece.rows, rank, limit)
                )
        for limit, found in parts.items():
            rows = scanned(found, columns_of(quantity))
            selects.append(_select(connection, f"{quantity}_rank{rank}_parts_{limit}", rows, rank, limit))
    if not selects:
        return
    derived = "" if quantity == SCALAR else "".join(f", {text} as {name}" for name, text in DERIVED.items())
    connection.execute(f"create view {quoted(quantity)} as select *{derived} from ({' union all '.join(selects)})")


def _select(connection: Any, name: str, rows: Any, rank: int, limit: int | None) -> str:
    connection.register(name, rows)
    kept = "" if limit is None else f" where step < {int(limit)}"
    return f"select {int(rank)} as rank, * replace (target::varchar as target) from {quoted(name)}{kept}"
