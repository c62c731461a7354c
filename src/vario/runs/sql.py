"""SQL over a run: each quantity is a view over the Parquet parts and the newest rows of all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vario.errors import ConfigError, MissingExtra
from vario.runs.pieces import Part
from vario.runs.store_reader import QuantityReader

DERIVED = {
    "norm": "sqrt(sum_squares)",
    "mean": "sum / count",
    "rms": "sqrt(sum_squares / count)",
    "std": "sqrt(greatest(sum_squares / count - (sum / count) ** 2, 0))",
    "absmax": "greatest(abs(min), abs(max))",
}
"""Statistics that every view has as columns, after those of the files."""


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
        try:
            for quantity, ranks in readers.items():
                _make_view(connection, quantity, ranks, sessions)
            answer = connection.sql(query)
            if answer is None:
                raise ConfigError("sql: this statement gives no rows; start with select")
            return answer.to_arrow_table()
        except duckdb.Error as error:
            raise ConfigError(f"sql: {error}") from error


def _make_view(
    connection: Any, quantity: str, ranks: Sequence[tuple[int, QuantityReader]], sessions: Sequence[Mapping[str, Any]]
) -> None:
    selects = []
    for rank, reader in ranks:
        for piece, limit in reader.shown(sessions):
            if isinstance(piece, Part):
                source = f"read_parquet('{str(piece.path).replace(chr(39), chr(39) * 2)}')"
            else:
                source = f'"{quantity}_rank{rank}_part{piece.number}"'
                connection.register(source.strip('"'), piece.rows)
            kept = "" if limit is None else f" where step < {int(limit)}"
            selects.append(f"select {rank} as rank, * replace (target::varchar as target) from {source}{kept}")
    if not selects:
        return
    derived = "" if quantity == "scalar" else "".join(f", {text} as {name}" for name, text in DERIVED.items())
    connection.execute(f'create view "{quantity}" as select *{derived} from ({" union all ".join(selects)})')
