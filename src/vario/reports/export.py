"""Exports a run's rows as tables with all statistics, one file per rank and quantity."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vario.core.elements.bins import COUNTED
from vario.core.elements.bins import QUANTITY as DISTRIBUTION
from vario.core.errors import ConfigError, RunError
from vario.core.records import COLUMNS, Table
from vario.core.text import unknown
from vario.runs.files.arrays import numbers
from vario.runs.files.bin_rows import bin_table
from vario.runs.run import Run
from vario.statistics import STATISTICS

FORMATS = ("csv", "parquet")
KEYS = ("step", "micro_step", "order", "target")


@dataclass(frozen=True)
class ExportedFile:
    """One file that was written."""

    path: Path
    rank: int
    quantity: str
    num_rows: int


@dataclass(frozen=True)
class ExportPlan:
    """The files to write; nothing is written yet."""

    run: Run
    format: str
    files: Sequence[tuple[Path, int, str]]
    """Path, rank and quantity."""

    def write(self) -> Iterator[ExportedFile]:
        """Write the files one by one."""
        for path, rank, quantity in self.files:
            table = statistics_table(self.run, quantity, rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name(path.name + ".tmp")
            _write(table, unfinished, self.format)
            os.replace(unfinished, path)
            yield ExportedFile(path, rank, quantity, table.num_rows)


def plan_export(run: Run, format: str, quantity: str | None, output: str | None, force: bool) -> ExportPlan:
    """Choose the files; raises if one exists, unless forced."""
    known = [(rank, name) for rank in run.ranks for name in _tables_of(run, rank)]
    pairs = [(rank, name) for rank, name in known if quantity in (None, name)]
    if not pairs:
        names = [name for _, name in known]
        raise ConfigError(unknown("--quantity", quantity, names) if quantity else f"{run.path}: nothing recorded yet")
    place = Path(output or f"{run.name}_{format}")
    if place.suffix[1:] in FORMATS and place.suffix != f".{format}":
        raise ConfigError(f"--output: '{place}' is not a {format} file name")
    if place.suffix == f".{format}":
        if len(pairs) > 1:
            raise ConfigError(
                f"--output: cannot write {len(pairs)} files to '{place}'. Name a folder, or one quantity."
            )
        files = [(place, *pairs[0])]
    else:
        files = [(place / f"rank{rank}_{name}.{format}", rank, name) for rank, name in pairs]
    taken = [str(path) for path, _, _ in files if path.exists()]
    if taken and not force:
        raise RunError(f"{taken[0]} already exists. Add --force to overwrite it.")
    return ExportPlan(run, format, files)


def statistics_table(run: Run, quantity: str, rank: int) -> Any:
    """Build an Arrow table: step, micro-step, order and target, then one column per statistic; scalars unchanged."""
    import pyarrow as pa

    if quantity == DISTRIBUTION:
        counted = {name: [(rank, run.reader(rank, name))] for name in run.quantities(rank) if name in COUNTED}
        return bin_table(counted, run.sessions)
    rows = run.to_arrow(quantity, rank)
    if quantity == "scalar":
        return rows
    summaries = np.column_stack([_floats(rows, name) for name in COLUMNS])
    columns = {name: rows.column(name) for name in KEYS if name in rows.column_names}
    columns |= {found.name: pa.array(found.part(summaries)) for found in STATISTICS}
    return pa.table(columns)


def _tables_of(run: Run, rank: int) -> list[str]:
    """The quantities of a rank, and `distribution` where rows have them."""
    names = run.quantities(rank)
    has_detail = any(
        row_file.has_detail
        for name in names
        if name in COUNTED
        for row_file, _ in run.reader(rank, name).shown(run.sessions)
    )
    return [*names, DISTRIBUTION] if has_detail else names


def _floats(rows: Any, column: str) -> Table:
    values: Table = numbers(rows.column(column).cast("double"))
    return values


def _write(table: Any, path: Path, format: str) -> None:
    if format == "csv":
        from pyarrow.csv import write_csv

        # CSV has no dictionaries.
        position = table.column_names.index("target")
        write_csv(table.set_column(position, "target", table.column("target").cast("string")), path)
    else:
        from pyarrow.parquet import write_table

        write_table(table, path)
