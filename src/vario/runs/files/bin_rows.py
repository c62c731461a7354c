"""Distributions in the rows of a run: which rows have one, and all of them as a table with a row per bin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from vario.core.elements.bins import DETAIL, Counts, bin_ends, decode
from vario.core.errors import ConfigError, RunCorrupt
from vario.runs.files.arrays import numbers, take
from vario.runs.files.store_reader import QuantityReader

MOST_BIN_ROWS = 8_000_000
"""The most rows of the table of all distributions: they take half a gigabyte."""
COLUMNS = ("rank", "step", "micro_step", "quantity", "target", "low", "high", "count")


def with_bins(table: Any) -> Any:
    """Return the rows that have a distribution."""
    known = np.array(table.column(DETAIL).is_valid().to_pylist(), np.bool_)
    return table if known.all() else take(table, np.flatnonzero(known))


def decoded(place: object, table: Any) -> Counts:
    """Return the distributions of rows; raises RunCorrupt, naming the place, for damaged ones."""
    try:
        for chunk in table.column(DETAIL).chunks:
            chunk.validate(full=True)
        return decode(table.column(DETAIL).to_pylist())
    except ValueError as error:  # also what Arrow raises for a damaged column
        raise RunCorrupt(f"{place}: its distributions cannot be read: {error}") from error


def bin_table(
    readers: Mapping[str, Sequence[tuple[int, QuantityReader]]], sessions: Sequence[Mapping[str, Any]]
) -> Any:
    """Return all distributions as an Arrow table with a row for each bin that has elements.

    `readers` are the ranks of each quantity. A bin is from `low` to `high`; both are negative for negative elements.
    """
    tables = [
        _of_rows(table, quantity, rank)
        for quantity, ranks in readers.items()
        for rank, reader in ranks
        for table in _batches(reader, sessions)
    ]
    if sum(table.num_rows for table in tables) > MOST_BIN_ROWS:
        raise ConfigError(
            f"distribution: more than {MOST_BIN_ROWS:,} rows with all steps and tensors. Read single tensors: "
            f"run.distribution(target, quantity)."
        )
    return pa.concat_tables([_empty(), *tables])


def _batches(reader: QuantityReader, sessions: Sequence[Mapping[str, Any]]) -> Iterable[Any]:
    table = with_bins(reader.read(["step", "micro_step", "target", DETAIL], sessions))
    return [table] if table.num_rows else []


def _of_rows(table: Any, quantity: str, rank: int) -> Any:
    counts = decoded(f"{quantity} of rank {rank}", table)
    at, bins = np.nonzero(counts)
    low, high = bin_ends()
    targets = table.column("target").combine_chunks()
    names = np.array(targets.to_pylist(), object)[at].tolist()
    return _table(
        rank=np.full(len(at), rank, np.int64),
        step=numbers(table.column("step"))[at],
        micro_step=numbers(table.column("micro_step"))[at],
        quantity=[quantity] * len(at),
        target=names,
        low=low[bins],
        high=high[bins],
        count=counts[at, bins],
    )


def _empty() -> Any:
    whole, doubles = np.zeros(0, np.int64), np.zeros(0)
    keys = {"rank": whole, "step": whole, "micro_step": np.zeros(0, np.int32), "quantity": [], "target": []}
    return _table(**keys, low=doubles, high=doubles, count=whole)


def _table(**columns: Any) -> Any:
    texts = ("quantity", "target")
    return pa.table({name: pa.array(columns[name], pa.string() if name in texts else None) for name in COLUMNS})
