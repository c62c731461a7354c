"""A very long run of very many targets, written by the store's own code in several processes at once.

Each process writes a stretch of the steps as a session of its own, as if the run had been resumed there: rows are
encoded, compacted and outlined as in a training process, only the tensors behind them are made up.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vario.core.records import COLUMNS, COUNT, MAX, MIN, NANS, SUM, SUM_SQUARES, ZEROS, Frame, Scalars, Table
from vario.core.retention_options import ALL, tiers_of
from vario.core.run_format import FORMAT, MERGED_PARTS
from vario.store.compacting import compact_run
from vario.store.compaction import Compactor
from vario.store.encoding import StreamEncoder
from vario.store.recovery import part_path
from vario.store.retention import Retention

RUNS = Path(__file__).parent / ".long_runs"
PART_BYTES = 32 << 20
NUM_NOISES = 61
"""Different tables of noise; a prime, so that they meet a part's steps in ever new order."""
KINDS = ("attention.q", "attention.k", "attention.v", "attention.out", "mlp.up", "mlp.down", "mlp.gate", "norm")


@dataclass(frozen=True)
class Size:
    """How much is written."""

    num_targets: int
    num_steps: int

    @property
    def names(self) -> tuple[str, ...]:
        """Parameters of a deep transformer."""
        return tuple(
            f"model.layers.{index // len(KINDS)}.{KINDS[index % len(KINDS)]}.weight"
            for index in range(self.num_targets)
        )

    @property
    def planted(self) -> dict[int, int]:
        """Where a NaN was planted: the target by step."""
        chance = np.random.default_rng(7)
        steps = chance.choice(self.num_steps, min(12, self.num_steps), replace=False)
        return {int(step): int(chance.integers(self.num_targets)) for step in steps}


class Rows:
    """Summaries of gradients as a model yields them: in float32, of sizes that differ by target and drift by step."""

    def __init__(self, size: Size) -> None:
        chance = np.random.default_rng(0)
        shape = (size.num_targets, len(COLUMNS))
        self._size = size
        self._planted = size.planted
        self._noises = [chance.normal(1, 0.1, shape).astype(np.float32) for _ in range(NUM_NOISES)]
        self._scale = chance.lognormal(-5, 2, size.num_targets).astype(np.float32)
        self._count = chance.choice([1024, 4096 * 4096, 4096 * 1024], size.num_targets)

    def table(self, step: int) -> Table:
        """The rows of one step."""
        noise = self._noises[step % NUM_NOISES]
        level = self._scale * np.float32(1 + 10 / (1 + step / 500) + 0.3 * np.sin(step / 3000))
        # The same noise never meets the same target twice in a row of cycles.
        noise = np.roll(noise, step // NUM_NOISES, axis=0)
        table = np.zeros(noise.shape)
        table[:, COUNT] = self._count
        table[:, SUM] = level * (noise[:, SUM] - 1) * 10
        table[:, SUM_SQUARES] = np.square(level * noise[:, SUM_SQUARES])
        table[:, MIN] = -level * np.abs(noise[:, MIN]) / 100
        table[:, MAX] = level * np.abs(noise[:, MAX]) / 100
        table[:, ZEROS] = np.floor(self._count * 1e-4 * np.abs(noise[:, ZEROS]))
        if (target := self._planted.get(step)) is not None:
            table[target, [SUM, SUM_SQUARES]] = np.nan
            table[target, NANS] = 1
        return table


def scalars(step: int) -> dict[str, float]:
    """The plain numbers of one step."""
    chance = np.random.default_rng(step).normal(size=4)
    found = {
        "loss": 2 + 8 / (1 + step / 500) ** 0.5 + 0.1 * chance[0],
        "lr": 3e-4 * min(1.0, step / 2000),
        "grad_norm": 1 + 0.1 * chance[1],
        "step_seconds": 0.25 + 0.01 * abs(chance[2]),
        "tokens_per_second": 4e6 + 1e4 * chance[3],
    }
    return {name: float(value) for name, value in found.items()}


def run_path(size: Size, retention: str) -> Path:
    """Where a run of this size is."""
    return RUNS / f"{size.num_targets}x{size.num_steps}{'' if retention == ALL else f'-{retention}'}"


def long_run(size: Size, num_processes: int, retention: str = ALL) -> Path:
    """The run of this size, written if it is not there yet; with tiers, old rows are thinned while it is written."""
    path = run_path(size, retention)
    if (path / "run.json").exists():
        return path
    shutil.rmtree(path, ignore_errors=True)
    bounds = np.linspace(0, size.num_steps, num_processes + 1).astype(int).tolist()
    start = time.perf_counter()
    jobs = [
        multiprocessing.Process(target=write_steps, args=(path / f"session{session}", size, session, bounds, retention))
        for session in range(num_processes)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    if any(job.exitcode for job in jobs):
        raise SystemExit(f"{path}: could not be written")
    merged: dict[str, dict[str, Any]] = {}
    for session in range(num_processes):
        for file in (path / f"session{session}").rglob(MERGED_PARTS):
            merged.setdefault(file.parent.name, {}).update(json.loads(file.read_bytes())["parts"])
        for file in (path / f"session{session}").rglob("*.parquet"):
            place = path / "rank0" / file.relative_to(path / f"session{session}")
            place.parent.mkdir(parents=True, exist_ok=True)
            file.rename(place)
        shutil.rmtree(path / f"session{session}")
    for quantity, parts in merged.items():
        (path / "rank0" / quantity / MERGED_PARTS).write_text(json.dumps({"parts": parts}), encoding="utf8")
    describe(path, size, bounds[:-1])
    if retention != ALL:
        # What is the newest of each session is old in the whole run.
        compact_run(path, retention)
    print(f"{path.name}: written in {time.perf_counter() - start:.0f} s by {num_processes} processes", flush=True)
    return path


def write_steps(rank_folder: Path, size: Size, session: int, bounds: list[int], retention: str) -> None:
    """Write some steps as one session; part numbers leave room for those of the sessions before."""
    os.nice(5)
    first, last = bounds[session : session + 2]

    def retained(folder: Path) -> Retention:
        return Retention(folder, tiers_of(retention, folder.name), bounds[: session + 1], session, grace_seconds=0.0)

    for quantity in ("gradient", "scalar"):
        (rank_folder / quantity).mkdir(parents=True)
    rows, names = Rows(size), size.names
    order = np.arange(size.num_targets, dtype=np.int32)
    compactor = Compactor(retained=None if retention == ALL else retained, share=1.0)
    most_waiting = 2 if retention == ALL else 0
    steps_per_part = max(1, PART_BYTES // (84 * size.num_targets))
    scalar_steps = 4096
    part, scalar_part = session * 100_000, session * 100_000
    for begin in range(first, last, steps_per_part):
        part += 1
        encoder = StreamEncoder("gradient", part, session, frozenset(COLUMNS))
        with open(stream := part_path(rank_folder, "gradient", part), "wb") as file:
            for step in range(begin, min(last, begin + steps_per_part)):
                file.write(encoder.encode_frames([Frame("gradient", step, 0, names, order, rows.table(step))]))
        compactor.add(stream)
        while compactor.num_waiting > most_waiting:
            time.sleep(0.02)
        if session == 0 and part % 100 == 0:
            print(f"step {begin} of {last}", flush=True)
    for begin in range(first, last, scalar_steps):
        scalar_part += 1
        encoder = StreamEncoder("scalar", scalar_part, session, frozenset(COLUMNS))
        with open(stream := part_path(rank_folder, "scalar", scalar_part), "wb") as file:
            for step in range(begin, min(last, begin + scalar_steps)):
                file.write(encoder.encode_scalars([Scalars(step, 1.75e9 + 0.25 * step, scalars(step))]))
        compactor.add(stream)
    compactor.finish()


def describe(path: Path, size: Size, first_steps: list[int]) -> None:
    """The JSON files beside the rows."""
    started = 1.75e9
    parameters = [{"name": name, "shape": [1024], "dtype": "float32", "trainable": True} for name in size.names]
    rank = {"rank": 0, "world_size": 1, "host": "bench", "pid": 1, "state": "finished", "error": None, "ended": started}
    rank |= {"last_step": size.num_steps - 1, "session": len(first_steps) - 1, "opened": started, "parts_off": []}
    run = {
        "format": FORMAT,
        "id": "bench",
        "started": started,
        "ended": started + 0.25 * size.num_steps,
        "state": "finished",
        "error": None,
        "world_size": 1,
        "config": {"quantities": ["gradient"]},
        "versions": {},
        "command": "bench/long_run.py",
        "host": "bench",
        "sessions": [{"first_step": first, "started": started + 0.25 * first} for first in first_steps],
    }
    for name, content in (
        ("rank0/rank.json", {**rank, "dropped_steps": 0}),
        ("rank0/structure.json", {"modules": [], "parameters": parameters}),
        ("run.json", run),
    ):
        (path / name).write_text(json.dumps(content), encoding="utf8")
