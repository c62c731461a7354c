"""Runs for tests of places elsewhere: large ones, growing ones, and what is equal about two of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from made_runs import header, record
from vario.cli import main
from vario.core.records import COLUMNS, COUNT, Frame
from vario.runs.run import open_run
from vario.sinks.store import Store

TARGETS = tuple(f"layers.{number:04d}.weight" for number in range(1500))


def ship(run: Path, url: str, *words: str) -> int:
    return main(["ship", str(run), url, *words])


def random_frame(step: int, targets: tuple[str, ...] = TARGETS) -> Frame:
    """Rows that compress badly."""
    rows = np.random.default_rng(step).normal(size=(len(targets), len(COLUMNS)))
    rows[:, COUNT:] = np.abs(rows[:, COUNT:])
    rows[:, [COLUMNS.index(name) for name in ("count", "nans", "infs", "zeros")]] = (8, 0, 0, 0)
    return Frame("gradient", step, 0, targets, np.arange(len(targets), dtype=np.int32), rows)


def write_large(path: Path, num_steps: int = 216, part_steps: int = 108, targets: tuple[str, ...] = TARGETS) -> Path:
    """A run of many parts that are larger than what one series needs of them."""
    store = Store(part_steps=part_steps, small_part_bytes=0)
    store.open(header(path))
    for step in range(num_steps):
        store.write(record(step, random_frame(step, targets)))
    store.close("finished", None)
    return path


def begun(path: Path, **options: int) -> Store:
    """A run that is being written by this process."""
    store = Store(**{"part_steps": 10, "small_part_bytes": 0, **options})
    store.open(header(path))
    return store


def numbers(run: str | Path) -> dict[tuple[str, str], tuple[list[int], str]]:
    """Every series of a run, in texts, in which a NaN is a NaN."""
    found = open_run(run)
    series = {
        (quantity, target): found.series(target, quantity)
        for quantity in found.quantities()
        for target in found.targets(quantity)
    }
    return {key: (one.steps.tolist(), repr(one.values.tolist())) for key, one in series.items()}


def files(folder: Path) -> dict[str, bytes]:
    """The content of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
