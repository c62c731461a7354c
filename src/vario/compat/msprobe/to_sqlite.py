"""msprobe's `csv2db`: converts CSV files to one SQLite database, with a fixed number of steps per table."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain, groupby, repeat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vario.compat.msprobe.conversion import Conversion, check_found, output_folder, remarks_before, watched
from vario.compat.msprobe.csv_folders import (
    TENSOR_KINDS,
    CsvFile,
    RankFolder,
    checked_kinds,
    checked_number,
    find_files,
    find_folders,
)
from vario.compat.msprobe.csv_rows import NO_MICRO_STEP, Reading, floats, read_header
from vario.compat.msprobe.unfinished import made_folder
from vario.compat.msprobe.wording import counted
from vario.compat.msprobe.workers import run_tasks
from vario.core.errors import ConfigError, RunError

KINDS = (*TENSOR_KINDS, "other")
STATISTICS: tuple[str, ...] = ("norm", "min", "max", "zeros", "nans", "mean")
STATISTICS += ("entropy", "softmax_max", "sr", "kernel_norm", "std_x", "jacobian", "proxy", "token_similarity")
FILE_NAME = "monitor_metrics.db"
BLOCK_BYTES = 2 << 20
"""How much CSV is converted at a time."""

Target = tuple[str, int, int]
"""Name, stage and micro-step."""


@dataclass
class CSV2DBConfig:
    """What `csv2db` converts, and where to."""

    monitor_path: str | os.PathLike[str]
    time_start: str | None = None
    time_end: str | None = None
    process_num: int = 1
    data_type_list: Sequence[str] | None = None
    step_partition: int = 500
    output_dirpath: str | os.PathLike[str] | None = None


def csv2db(config: CSV2DBConfig) -> None:
    """Write the CSV files of all ranks started in a time range to `monitor_metrics.db`; prints its path."""
    sys.stdout.write(f"{convert_to_sqlite(config).line}\n")


def convert_to_sqlite(config: CSV2DBConfig) -> Conversion:
    """Run `csv2db` and return the result."""
    num_processes = checked_number("process_num", config.process_num)
    partition = checked_number("step_partition", config.step_partition)
    kinds = checked_kinds(config.data_type_list, KINDS)
    folders = find_folders(config.monitor_path, config.time_start, config.time_end)
    path = output_folder(config.monitor_path, config.output_dirpath, "csv2db") / FILE_NAME
    if path.exists():
        raise ConfigError(f"output_dirpath: '{path}' already exists. Name another folder, or remove it.")
    unfinished = path.with_name(path.name + ".tmp")
    try:
        tasks = plan(folders, kinds)
        check_found(tasks, folders, kinds)
        before = remarks_before(folders, config.data_type_list, KINDS)
        with made_folder(path.parent), _removed_at_the_end(unfinished):
            with (
                closing(sqlite3.connect(unfinished, isolation_level=None)) as connection,
                closing(run_tasks(read_rows, tasks, num_processes)) as found,
            ):
                work = _insert(_Database(connection, tasks, partition), found)
                remarks, num_rows = watched(chain(before, work), sum(task.file.num_bytes for task in tasks))
            os.replace(unfinished, path)
    except (OSError, sqlite3.Error) as error:
        raise RunError(f"{path}: not created: {error}") from error
    return Conversion(path, sorted({folder.rank for folder in folders}), num_rows, remarks)


@contextmanager
def _removed_at_the_end(path: Path) -> Iterator[None]:
    """Remove the leftovers of an earlier attempt, and those of this one."""
    path.unlink(missing_ok=True)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Task:
    """One file, and the columns that its table has."""

    file: CsvFile
    rank: int
    statistics: Sequence[str]


@dataclass(frozen=True)
class Rows:
    """Some rows of one file."""

    task: Task
    targets: Sequence[Target]
    codes: npt.NDArray[np.int64]
    """Which of the targets each row is about."""
    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    num_bytes: int


def plan(folders: Sequence[RankFolder], kinds: Sequence[str]) -> list[Task]:
    """Return the files in the order of insertion: by kind, rank and step, older files first."""
    found: dict[str, list[tuple[int, CsvFile]]] = {}
    for rank, of_rank in groupby(folders, key=lambda folder: folder.rank):
        for kind, files in find_files(of_rank, kinds).items():
            # A newer folder replaces rows of an older one, so age comes first.
            ordered = sorted(files, key=lambda file: (file.age[0], file.first_step, file.age[1]))
            found.setdefault(kind, []).extend((rank, file) for file in ordered)
    tasks = []
    for kind in sorted(found):
        present = {name for _, file in found[kind] for name in read_header(file)}
        statistics = [name for name in STATISTICS if name in present]
        tasks += [Task(file, rank, statistics) for rank, file in found[kind]]
    return tasks


def read_rows(task: Task) -> Iterator[str | Rows]:
    """Yield the rows of one file, and remarks about what was skipped."""
    remarks: list[str] = []
    num_bytes = task.file.num_bytes
    for table in Reading(task.statistics, chunk_bytes=BLOCK_BYTES).blocks(task.file, remarks.append):
        names = table.column("name").combine_chunks().dictionary_encode()
        micro_steps = table.column("micro_step").to_numpy()
        keys = np.stack(
            [
                names.indices.to_numpy(),
                table.column("vpp_stage").to_numpy(),
                np.where(micro_steps == NO_MICRO_STEP, 0, micro_steps),
            ]
        )
        if (keys[1:] == keys[1:, :1]).all() and len(names.dictionary) == keys.shape[1]:
            unique, codes = keys, np.arange(keys.shape[1])  # each row has its own name: nothing to look for
        else:
            unique, codes = _in_order_of_appearance(keys)
        known = names.dictionary.to_pylist()
        targets = [(known[name], stage, micro) for name, stage, micro in unique.T.tolist()]
        steps = table.column("step").to_numpy()
        yield Rows(task, targets, codes, steps, floats(table, task.statistics), min(num_bytes, BLOCK_BYTES))
        num_bytes -= min(num_bytes, BLOCK_BYTES)
    yield from remarks


def _in_order_of_appearance(keys: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    unique, first, codes = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return unique[:, order], place[codes.reshape(-1)]


def _insert(database: _Database, found: Iterator[str | Rows]) -> Iterator[str | tuple[int, int]]:
    for item in found:
        if isinstance(item, str):
            yield item
        else:
            database.insert(item)
            yield item.num_bytes, len(item.steps)
    yield from database.finish()


class _Database:
    """The database being written, with the tables that msprobe's viewer reads."""

    def __init__(self, connection: sqlite3.Connection, tasks: Sequence[Task], partition: int) -> None:
        self._connection = connection
        self._partition = partition
        self._target_ids: dict[Target, int] = {}
        self._num_inserted: dict[str, int] = {}
        # An incomplete file is deleted, so nothing has to be recoverable.
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE", "cache_size = -65536"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("BEGIN")
        self._make_tables()
        kinds = {task.file.kind: task.statistics for task in tasks}
        self._metric_ids = {kind: nth for nth, kind in enumerate(kinds, start=1)}
        first = min((task.file.first_step for task in tasks), default=0)
        last = max((task.file.last_step for task in tasks), default=0)
        for kind, statistics in kinds.items():
            self._add_kind(kind, statistics)
            for start in range(first // partition * partition, last + 1, partition):
                self._make_metric_table(self._table(kind, start), start, statistics)
        highest = max((task.rank for task in tasks), default=0)
        facts = {"max_rank": highest, "min_step": first, "max_step": last, "step_partition_size": partition}
        connection.executemany("INSERT INTO global_stats VALUES (?, ?)", facts.items())

    def _make_tables(self) -> None:
        self._connection.execute(
            "CREATE TABLE monitoring_targets (target_id INTEGER PRIMARY KEY AUTOINCREMENT, target_name TEXT NOT NULL, "
            "vpp_stage INTEGER NOT NULL, micro_step INTEGER NOT NULL DEFAULT 0, "
            "UNIQUE (target_name, vpp_stage, micro_step))"
        )
        self._connection.execute(
            "CREATE TABLE monitoring_metrics (metric_id INTEGER PRIMARY KEY AUTOINCREMENT, "
            "metric_name TEXT UNIQUE NOT NULL)"
        )
        self._connection.execute(
            "CREATE TABLE metric_stats (metric_id INTEGER NOT NULL REFERENCES monitoring_metrics (metric_id), "
            "stat_name TEXT NOT NULL, PRIMARY KEY (metric_id, stat_name)) WITHOUT ROWID"
        )
        self._connection.execute(
            "CREATE TABLE global_stats (stat_name TEXT PRIMARY KEY, stat_value INTEGER NOT NULL) WITHOUT ROWID"
        )

    def _add_kind(self, kind: str, statistics: Sequence[str]) -> None:
        number = self._metric_ids[kind]
        self._connection.execute("INSERT INTO monitoring_metrics VALUES (?, ?)", (number, kind))
        self._connection.executemany("INSERT INTO metric_stats VALUES (?, ?)", zip(repeat(number), statistics))

    def _make_metric_table(self, table: str, start: int, statistics: Sequence[str]) -> None:
        columns = "".join(f"{name} REAL DEFAULT NULL, " for name in statistics)
        self._connection.execute(
            f"CREATE TABLE {table} (rank INTEGER NOT NULL, "
            f"step INTEGER NOT NULL CHECK (step BETWEEN {start} AND {start + self._partition - 1}), "
            f"target_id INTEGER NOT NULL REFERENCES monitoring_targets (target_id), {columns}"
            f"PRIMARY KEY (rank, step, target_id)) WITHOUT ROWID"
        )
        self._num_inserted[table] = 0

    def _table(self, kind: str, step: int) -> str:
        start = step // self._partition * self._partition
        return f"metric_{self._metric_ids[kind]}_step_{start}_{start + self._partition - 1}"

    def insert(self, rows: Rows) -> None:
        """Insert some rows; replaces existing ones."""
        targets = np.array([self._target_id(target) for target in rows.targets], np.int64)[rows.codes]
        partitions = rows.steps // self._partition
        for number in np.unique(partitions).tolist():
            chosen = slice(None) if partitions[0] == partitions[-1] == number else partitions == number
            table = self._table(rows.task.file.kind, number * self._partition)
            if table not in self._num_inserted:  # a step outside the range in the file's name
                self._make_metric_table(table, number * self._partition, rows.task.statistics)
            steps = rows.steps[chosen].tolist()
            columns = [steps, targets[chosen].tolist(), *rows.values[chosen].T.tolist()]
            places = ", ".join("?" * (1 + len(columns)))
            self._connection.executemany(
                f"INSERT OR REPLACE INTO {table} VALUES ({places})", zip(repeat(rows.task.rank), *columns)
            )
            self._num_inserted[table] += len(steps)

    def _target_id(self, target: Target) -> int:
        number = self._target_ids.get(target)
        if number is None:
            number = self._target_ids[target] = len(self._target_ids) + 1
            self._connection.execute("INSERT INTO monitoring_targets VALUES (?, ?, ?, ?)", (number, *target))
        return number

    def finish(self) -> Iterator[str]:
        """Commit, and yield remarks about replaced rows."""
        for table, num_inserted in self._num_inserted.items():
            (num_kept,) = self._connection.execute(f"SELECT count(*) FROM {table}").fetchone()
            if num_kept < num_inserted:
                yield f"{table}: {counted(num_inserted - num_kept, 'row')} occur twice; the later ones are used"
        self._connection.execute("COMMIT")
