"""Make existing runs smaller: what a training does in the background, at once and for runs of any version."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vario.core import run_format
from vario.core.errors import RunCorrupt, RunTaken, RunTooNew
from vario.core.old_names import QUANTITIES
from vario.core.retention_options import Options, tiers_of
from vario.core.run_files import shapes
from vario.core.run_files.parquet import read_footer, read_whole
from vario.core.run_files.shapes import read_json
from vario.store.compaction import compact, session_of
from vario.store.folder import RANK_FOLDER, write_json
from vario.store.holding import Number, has_lost, hold, refuse_held
from vario.store.recovery import PART_DEPTH, recover
from vario.store.retention import Retention
from vario.store.rollups import ROLLUP_MIN_ROWS, RollupBuilder

COPIED = re.compile(r".*\.(jsonl?|live\.arrow)")
"""Files that are rewritten in place or truncated; all others are only replaced or removed."""


@dataclass(frozen=True)
class Volume:
    """What a run takes on disk."""

    num_bytes: int
    num_files: int


def is_run(path: Path) -> bool:
    """Whether a folder is a run, and not one of runs."""
    return (path / run_format.RUN).is_file()


def volume(path: Path) -> Volume:
    """Return what a run takes on disk."""
    sizes = [entry.lstat().st_size for entry in path.rglob("*") if entry.is_file() and not entry.is_symlink()]
    return Volume(sum(sizes), len(sizes))


def compact_run(path: Path, options: Options, rollup_min_rows: int = ROLLUP_MIN_ROWS) -> Volume:
    """Compact, roll up, thin and merge all parts of a run; return what it takes afterwards.

    Raises RunTaken while a process writes the run. A kill at any moment loses nothing: start it again.
    """
    run = _checked_run(path)
    folders = sorted(entry for entry in path.iterdir() if RANK_FOLDER.fullmatch(entry.name) and entry.is_dir())
    held = [(folder, _held(path, folder)) for folder in folders]
    if run["format"] < run_format.REWRITTEN_FORMAT:
        write_json(path / run_format.RUN, {**run, "format": run_format.REWRITTEN_FORMAT})
    first_steps = [int(session["first_step"]) for session in run.get("sessions") or [{"first_step": 0}]]
    for folder, number in held:
        _, streams = recover(folder)
        for stream in streams:
            compact(stream)
        for quantity in sorted(entry for entry in folder.iterdir() if _has_parts(entry)):
            _check_held(path, folder, number)
            tiers = tiers_of(options, QUANTITIES.get(quantity.name, quantity.name))
            retention = Retention(quantity, tiers, first_steps, len(first_steps) - 1, grace_seconds=0.0)
            rollups = _rolled_up(quantity, rollup_min_rows)
            while retention.step(rollups):
                _check_held(path, folder, number)
            retention.finish()
    return volume(path)


def dry_run(path: Path, options: Options) -> Volume:
    """Return what a run would take: compacts a copy beside it, made of links, and removes the copy."""
    refuse_live(path)
    place = path.parent / f".{path.name}.dry-run-{os.getpid()}"
    try:
        shutil.copytree(path, place, symlinks=True, copy_function=_link)
        return compact_run(place, options)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def refuse_live(path: Path) -> None:
    """Raise RunTaken while a process writes the run."""
    for folder in sorted(entry for entry in path.iterdir() if RANK_FOLDER.fullmatch(entry.name)):
        refuse_held(path, folder, read_json(folder / run_format.RANK, 2, shapes.RANK_STATUS), False)


def _link(source: str, target: str) -> str:
    if COPIED.fullmatch(source):
        return str(shutil.copy2(source, target))
    os.link(source, target)
    return target


def _checked_run(path: Path) -> dict[str, Any]:
    run = read_json(path / run_format.RUN, 1, {"format": int})
    if run is None:
        raise RunCorrupt(f"{path / run_format.RUN}: is missing, so it cannot say that parts were merged")
    if run["format"] > run_format.NEWEST_FORMAT:
        raise RunTooNew(f"{path}: written by a newer vario (format {run['format']}); pip install -U vario")
    shapes.check_shape(path / run_format.RUN, run, shapes.RUN)
    return run


def _held(path: Path, folder: Path) -> Number:
    own = read_json(folder / run_format.RANK, 2, shapes.RANK_STATUS)
    free = refuse_held(path, folder, own, False)
    session = int((own or {}).get("session") or 0)
    number = hold(folder, session, free if free is None or free[0] <= session else None)
    if number is None:
        raise RunTaken(f"{path}: another process is starting to write this run right now.")
    return number


def _check_held(path: Path, folder: Path, number: Number) -> None:
    if has_lost(folder, number):
        raise RunTaken(f"{path}: another process has resumed this run meanwhile; nothing is lost.")


def _has_parts(folder: Path) -> bool:
    return folder.is_dir() and any(run_format.PART.fullmatch(name) for name in os.listdir(folder))


def _rolled_up(folder: Path, rollup_min_rows: int) -> RollupBuilder | None:
    """Build the rollups that are missing; None for a quantity with too few rows for any."""
    parts = [(first, last, folder / name) for first, last, name in _parts(folder)]
    has_some = (folder.parent / run_format.ROLLUPS / folder.name).is_dir()
    if not has_some and sum(read_footer(path, PART_DEPTH).num_rows for _, _, path in parts) < rollup_min_rows:
        return None
    builder = RollupBuilder(folder.parent, folder.name)
    for first, last, path in parts:
        if not builder.covers(first):
            table = read_whole(path, PART_DEPTH).unify_dictionaries().combine_chunks()
            builder.add(first, session_of(table), table, last)
    builder.finish()
    return builder


def _parts(folder: Path) -> Sequence[tuple[int, int, str]]:
    return [part for part in run_format.current_parts(os.listdir(folder)) if part[2].endswith(".parquet")]
