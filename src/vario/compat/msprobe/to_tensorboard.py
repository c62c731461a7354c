"""msprobe's `csv2tensorboard_by_step`: converts CSV files to TensorBoard event files."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path

import numpy as np

from vario.compat.msprobe.conversion import Conversion, check_found, is_free, output_folder, remarks_before, watched
from vario.compat.msprobe.csv_folders import (
    TENSOR_KINDS,
    CsvFile,
    RankFolder,
    checked_kinds,
    checked_number,
    find_files,
    find_folders,
)
from vario.compat.msprobe.csv_rows import CHUNK_BYTES, NO_MICRO_STEP, Reading, StepRows
from vario.compat.msprobe.unfinished import whole_folder
from vario.compat.msprobe.wording import Repeated
from vario.compat.msprobe.workers import run_tasks
from vario.core.errors import ConfigError, RunError
from vario.core.event_file import EventFile

STATISTICS = ("norm", "min", "max", "zeros", "nans", "id", "mean")


def csv2tensorboard_by_step(
    monitor_path: str | os.PathLike[str],
    time_start: str | None = None,
    time_end: str | None = None,
    process_num: int = 1,
    data_type_list: Sequence[str] | None = None,
    output_dirpath: str | os.PathLike[str] | None = None,
) -> None:
    """Write the CSV files of all ranks started in a time range as TensorBoard event files.

    They go to `rank<n>/<kind>/` under `output_dirpath`, or under a new folder in `monitor_path`; prints the path.
    """
    done = convert_to_tensorboard(monitor_path, time_start, time_end, process_num, data_type_list, output_dirpath)
    sys.stdout.write(f"{done.line}\n")


def convert_to_tensorboard(
    monitor_path: str | os.PathLike[str],
    time_start: str | None = None,
    time_end: str | None = None,
    process_num: int = 1,
    data_type_list: Sequence[str] | None = None,
    output_dirpath: str | os.PathLike[str] | None = None,
) -> Conversion:
    """Run `csv2tensorboard_by_step` and return the result."""
    num_processes = checked_number("process_num", process_num)
    kinds = checked_kinds(data_type_list, TENSOR_KINDS)
    folders = find_folders(monitor_path, time_start, time_end)
    output = output_folder(monitor_path, output_dirpath, "csv2tensorboard_by_step")
    check_found(plan(folders, kinds, output), folders, kinds)
    if not is_free(output):
        raise ConfigError(f"output_dirpath: '{output}' exists and is not empty. Name a new folder, or empty that one.")
    before = remarks_before(folders, data_type_list, TENSOR_KINDS)
    try:
        with whole_folder(output) as unfinished:
            tasks = plan(folders, kinds, unfinished)
            # Closed here: workers must stop writing before an unfinished folder is removed.
            with closing(run_tasks(write_events, tasks, num_processes)) as work:
                remarks, num_rows = watched(chain(before, work), sum(task.num_bytes for task in tasks))
    except OSError as error:
        raise RunError(f"{output}: not created: {error}") from error
    return Conversion(output, sorted({folder.rank for folder in folders}), num_rows, remarks)


@dataclass(frozen=True)
class Task:
    """The files of one rank and kind, and their output path."""

    files: Sequence[CsvFile]
    folder: Path
    num_bytes: int
    chunk_bytes: int = CHUNK_BYTES


def plan(folders: Sequence[RankFolder], kinds: Sequence[str], output: Path) -> list[Task]:
    """Return a task per rank and kind, largest first, so that worker processes finish together."""
    tasks = []
    for rank, of_rank in groupby(folders, key=lambda folder: folder.rank):
        for kind, files in find_files(of_rank, kinds).items():
            tasks.append(Task(files, output / f"rank{rank}" / kind, sum(file.num_bytes for file in files)))
    return sorted(tasks, key=lambda task: -task.num_bytes)


def write_events(task: Task) -> Iterator[str | tuple[int, int]]:
    """Write one event file; yields remarks, and regularly the bytes read and rows written since."""
    remarks: list[str] = []
    repeated = Repeated()
    reading = Reading(STATISTICS, chunk_bytes=task.chunk_bytes)
    events: EventFile | None = None
    tags: tuple[str, ...] = ()
    statistics: list[str] = []
    done, num_rows = 0, 0
    for rows in reading.steps(task.files, remarks.append):
        present = [name for name in STATISTICS if name in rows.rows.column_names]
        if not rows.same_targets or present != statistics:
            statistics = present
            tags = tuple(_tags(rows, statistics))
        events = events or EventFile(task.folder, time.time())
        _add(events, rows, tags, statistics)
        repeated.add(rows)
        num_rows += rows.rows.num_rows
        # The caller reads only when it gets to this task: the remarks must fit into a pipe.
        if rows.num_bytes_read - done > task.num_bytes / 50:
            yield rows.num_bytes_read - done, num_rows
            done, num_rows = rows.num_bytes_read, 0
    if events is not None:
        events.close()
    yield from remarks
    yield from repeated.remarks(f"{task.folder.parent.name}, {task.folder.name}")
    yield task.num_bytes - done, num_rows


def _tags(rows: StepRows, statistics: Sequence[str]) -> Iterator[str]:
    for stage, name, micro_step in rows.targets():
        micro = "" if micro_step == NO_MICRO_STEP else f":micro{micro_step}"
        for statistic in statistics:
            yield f"vp{stage}:{name}{micro}/{statistic}"


def _add(events: EventFile, rows: StepRows, tags: tuple[str, ...], statistics: Sequence[str]) -> None:
    values = rows.values(statistics).reshape(-1)
    columns = [rows.rows.column(name) for name in statistics]
    if any(column.null_count for column in columns):
        known = np.stack([column.is_valid().to_numpy() for column in columns], axis=1).reshape(-1)
        tags, values = tuple(tag for tag, is_known in zip(tags, known, strict=True) if is_known), values[known]
    events.add_scalars(tags, values, rows.step, rows.time)
