"""The cost of writing and reading a step: the run store compared with three common formats.

    python bench/store.py                       # 2,000 targets x 8 columns x 1,000 steps: a few minutes
    python bench/store.py --targets 200 --steps 200

Each format gets the same rows and stores them as its users do: one CSV file per step (msprobe's layout), SQLite in WAL
mode with an index on the target, TensorBoard event files through the tensorboard package. TensorBoard has no rows, only
one tag per target and statistic, so it is timed with one statistic and fewer steps, and the table scales the results.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vario.core.records import COLUMNS, COUNT, MAX, MIN, SUM, SUM_SQUARES, ZEROS, Frame, Scalars, StepRecord
from vario.core.run_header import RunHeader
from vario.runs.run import open_run
from vario.sinks.store import Store

READS = 5
"""The number of different targets and steps to read; the median counts."""


@dataclass
class Result:
    """One row of the table."""

    way: str
    append_ms: list[float]
    cpu_ms_per_step: float
    bytes_per_value: float
    series_ms: float
    frame_ms: float
    note: str = ""

    def line(self) -> str:
        p50, p99 = np.percentile(self.append_ms, [50, 99])
        numbers = f"{p50:.2f} | {p99:.2f} | {self.cpu_ms_per_step:.2f} | {self.bytes_per_value:.1f}"
        return f"| {self.way} | {numbers} | {self.series_ms:.1f} | {self.frame_ms:.1f} | {self.note} |"


@dataclass(frozen=True)
class Size:
    """How much to write."""

    num_targets: int
    num_steps: int

    @property
    def names(self) -> list[str]:
        return [f"model.layers.{index // 10}.block.{index % 10}.weight" for index in range(self.num_targets)]

    @property
    def num_values(self) -> int:
        return self.num_targets * len(COLUMNS) * self.num_steps


def frames(size: Size) -> Iterator[Frame]:
    """Summaries of gradients as a model yields them: sizes differ by target, values drift and jitter by step."""
    chance = np.random.default_rng(0)
    names, order = tuple(size.names), np.arange(size.num_targets, dtype=np.int32)
    scale = chance.lognormal(-5, 2, size.num_targets)
    count = chance.choice([1024, 4096 * 4096, 4096 * 1024], size.num_targets)
    for step in range(size.num_steps):
        jitter = chance.normal(1, 0.1, (size.num_targets, len(COLUMNS))) * (1 + 1 / (step + 1))
        table = np.zeros((size.num_targets, len(COLUMNS)))
        table[:, COUNT] = count
        table[:, SUM] = scale * (jitter[:, SUM] - 1) * 10
        table[:, SUM_SQUARES] = np.square(scale * jitter[:, SUM_SQUARES])
        table[:, MIN] = -scale * np.abs(jitter[:, MIN]) / 100
        table[:, MAX] = scale * np.abs(jitter[:, MAX]) / 100
        table[:, ZEROS] = (count * 1e-4 * np.abs(jitter[:, ZEROS])).astype(np.int64)
        yield Frame("gradient", step, 0, names, order, table)


def timed_writes(write: Callable[[Frame], None], size: Size) -> tuple[list[float], float]:
    """Milliseconds of each append, and CPU milliseconds per step over all threads but for making the rows."""
    waits, making = [], 0.0
    cpu, source = time.process_time(), frames(size)
    for _ in range(size.num_steps):
        start = time.thread_time()
        frame = next(source)
        making += time.thread_time() - start
        start = time.perf_counter()
        write(frame)
        waits.append((time.perf_counter() - start) * 1e3)
    return waits, (time.process_time() - cpu - making) * 1e3 / size.num_steps


def timed_close(close: Callable[[], Any], size: Size) -> float:
    """CPU milliseconds that closing costs, per step."""
    cpu = time.process_time()
    close()
    return (time.process_time() - cpu) * 1e3 / size.num_steps


def timed_reads(read: Callable[[int], Any]) -> float:
    """Median milliseconds of a few different reads."""
    waits = []
    for index in range(READS):
        start = time.perf_counter()
        read(index)
        waits.append((time.perf_counter() - start) * 1e3)
    return float(np.median(waits))


def folder_bytes(folder: Path) -> int:
    return sum(entry.stat().st_size for entry in folder.rglob("*") if entry.is_file())


def bench_store(folder: Path, size: Size) -> Iterator[Result]:
    yield from bench_one_store(folder / "with", size, "vario store", Store())
    # What a run of this size would cost if it were too short for rollups.
    yield from bench_one_store(folder / "without", size, "... without rollups", Store(rollup_min_rows=1 << 62))


def bench_one_store(folder: Path, size: Size, way: str, store: Store) -> Iterator[Result]:
    def open_store(path: Path) -> None:
        structure: dict[str, Any] = {"modules": [], "parameters": []}
        store.open(RunHeader(path, 0, 1, {}, {}, "bench", structure, None, False, time.time()))

    def write(frame: Frame) -> None:
        store.write(StepRecord(frame.step, (frame,), Scalars(frame.step, time.time(), {"loss": 1.0})))

    names = size.names
    open_store(folder / "run")
    waits, cpu = timed_writes(write, size)

    def series(index: int) -> None:
        found = open_run(folder / "run").series(names[index * size.num_targets // READS], "gradient", "norm")
        assert len(found) == size.num_steps

    def frame(index: int) -> None:
        assert open_run(folder / "run").frame(index * size.num_steps // READS, "gradient").num_rows == size.num_targets

    note = f"while still written: series {timed_reads(series):.1f}, frame {timed_reads(frame):.1f}"
    cpu += timed_close(lambda: store.close("finished", None), size)
    per_value = folder_bytes(folder / "run") / size.num_values
    yield Result(way, waits, cpu, per_value, timed_reads(series), timed_reads(frame), note)


def bench_csv(folder: Path, size: Size) -> Iterator[Result]:
    names = size.names

    def write(frame: Frame) -> None:
        with open(folder / f"grad_{frame.step}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["name", "step", "micro_step", *COLUMNS])
            rows = zip(frame.targets, frame.summaries.tolist(), strict=True)
            writer.writerows([name, frame.step, frame.micro_step, *row] for name, row in rows)

    waits, cpu = timed_writes(write, size)

    def series(index: int) -> None:
        wanted, found = names[index * size.num_targets // READS], []
        for step in range(size.num_steps):
            with open(folder / f"grad_{step}.csv", newline="") as file:
                found += [float(row[5]) for row in csv.reader(file) if row[0] == wanted]
        assert len(found) == size.num_steps

    def frame(index: int) -> None:
        with open(folder / f"grad_{index * size.num_steps // READS}.csv", newline="") as file:
            assert len([[float(value) for value in row[1:]] for row in list(csv.reader(file))[1:]]) == size.num_targets

    per_value = folder_bytes(folder) / size.num_values
    yield Result("CSV per step", waits, cpu, per_value, timed_reads(series), timed_reads(frame), "msprobe's layout")


def bench_sqlite(folder: Path, size: Size) -> Iterator[Result]:
    names = size.names
    connection = sqlite3.connect(folder / "run.db")
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = normal")
    columns = ", ".join(f'"{name}" real' for name in COLUMNS)
    connection.execute(f"create table gradient (step integer, micro_step integer, target text, {columns})")
    connection.execute("create index by_target on gradient (target, step)")
    insert = f"insert into gradient values (?, ?, ?{', ?' * len(COLUMNS)})"

    def write(frame: Frame) -> None:
        rows = zip(frame.targets, frame.summaries.tolist(), strict=True)
        with connection:
            connection.executemany(insert, [(frame.step, frame.micro_step, name, *row) for name, row in rows])

    waits, cpu = timed_writes(write, size)
    cpu += timed_close(lambda: connection.execute("pragma wal_checkpoint(truncate)").close(), size)

    def series(index: int) -> None:
        query = "select step, sum_squares from gradient where target = ? order by step"
        found = connection.execute(query, (names[index * size.num_targets // READS],)).fetchall()
        assert len(found) == size.num_steps

    def frame(index: int) -> None:
        query = "select * from gradient where step = ?"
        assert len(connection.execute(query, (index * size.num_steps // READS,)).fetchall()) == size.num_targets

    series_ms, frame_ms = timed_reads(series), timed_reads(frame)
    connection.close()
    per_value = folder_bytes(folder) / size.num_values
    yield Result("SQLite", waits, cpu, per_value, series_ms, frame_ms, "WAL, index on target: a frame is a scan")


def bench_tensorboard(folder: Path, size: Size) -> Iterator[Result]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    tags = [f"{name}/norm" for name in size.names]
    few = Size(size.num_targets, max(READS, size.num_steps // 10))

    def write(frame: Frame) -> None:
        norms = np.sqrt(frame.summaries[:, SUM_SQUARES]).tolist()
        for tag, norm in zip(tags, norms, strict=True):
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=norm)])
            writer.add_event(Event(step=frame.step, wall_time=0.0, summary=summary))
        writer.flush()

    waits, cpu = timed_writes(write, few)
    cpu += timed_close(writer.close, few)

    def series(index: int) -> None:
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        events.Reload()
        assert len(events.Scalars(tags[index * size.num_targets // READS])) == few.num_steps

    per_value = folder_bytes(folder) / (few.num_targets * few.num_steps)
    read_ms = timed_reads(series) * size.num_steps / few.num_steps
    times = len(COLUMNS)
    note = (
        f"timed: 1 statistic, {few.num_steps} steps; append x{times}; reading is loading all, steps scaled, 1 statistic"
    )
    yield Result("TensorBoard", [wait * times for wait in waits], cpu * times, per_value, read_ms, read_ms, note)


WAYS: dict[str, Callable[[Path, Size], Iterator[Result]]] = {
    "store": bench_store,
    "csv": bench_csv,
    "sqlite": bench_sqlite,
    "tensorboard": bench_tensorboard,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the run store, compared with CSV, SQLite and TensorBoard.")
    parser.add_argument("--targets", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--folder", type=Path, help="output folder (default: the system's temporary folder)")
    arguments = parser.parse_args()
    size = Size(arguments.targets, arguments.steps)
    print(f"{size.num_targets:,} targets x {len(COLUMNS)} columns x {size.num_steps:,} steps, {os.cpu_count()} cores\n")
    print("| format | append p50 ms | p99 ms | CPU ms per step | bytes per value | one series ms | one frame ms | |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for way in arguments.ways:
        folder = Path(tempfile.mkdtemp(dir=arguments.folder))
        try:
            for result in WAYS[way](folder, size):
                print(result.line(), flush=True)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
