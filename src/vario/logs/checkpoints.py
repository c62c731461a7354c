"""Find the checkpoint of an output folder that shows where the run is now."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vario.core.errors import RunCorrupt, RunNotFound
from vario.logs.history import Curve, History, Note, Pace, pace_between
from vario.logs.text_files import written_at
from vario.logs.trainer_state import FILE, read_state

NAME = re.compile(r"checkpoint-(\d+)")
"""The Trainer's own pattern; `checkpoint-100-merged` is not a checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint folder: the Trainer writes its state last."""

    step: int
    state: Path
    written: float


def list_checkpoints(folder: Path) -> tuple[list[Checkpoint], list[int]]:
    """Return the complete checkpoints of an output folder by step, and the steps of those without a state."""
    complete, unfinished = [], []
    for entry in folder.iterdir():
        match = NAME.fullmatch(entry.name)
        if match is None or not entry.is_dir():
            continue
        state = entry / FILE
        if state.is_file():
            complete.append(Checkpoint(int(match[1]), state, written_at(state)))
        else:
            unfinished.append(int(match[1]))
    return sorted(complete, key=lambda each: each.step), sorted(unfinished)


def read_checkpoint(folder: Path) -> History:
    """Read the history in one checkpoint; the pace comes from the times of earlier checkpoints beside it."""
    history = read_state(folder / FILE)
    siblings, _ = list_checkpoints(folder.absolute().parent)
    return _with_pace(history, siblings)


def read_latest(folder: Path) -> History:
    """Read the latest history of an output folder: the live run's, even if an earlier run left higher steps."""
    complete, unfinished = list_checkpoints(folder)
    notes: list[Note] = []
    if unfinished:
        notes.append(Note("unfinished_checkpoints", {"steps": _listed(unfinished)}))
    chosen = _live(complete, notes)
    root = _root(folder, notes)
    if chosen is None or (root is not None and _is_newer(root, chosen)):
        history = root
    else:
        history = chosen
        if root is not None and (root.step or 0) > (chosen.step or 0):
            notes.append(Note("stale_root", {"step": root.step or 0, "live_step": chosen.step or 0}))
    if history is None:
        raise _nothing(folder, complete, unfinished, notes)
    stale = [each.step for each in complete if each.step > (history.step or 0)]
    if stale:
        notes.append(Note("stale_checkpoints", {"steps": _listed(stale), "live_step": history.step or 0}))
    history = _with_pace(history, complete)
    return dataclasses.replace(history, notes=(*notes, *history.notes))


def is_prefix(short: Curve, long: Curve) -> bool:
    """Whether one loss curve is a prefix of the other, so that both belong to one run."""
    count = len(short)
    return (
        count <= len(long)
        and np.array_equal(short.steps, long.steps[:count])
        and np.array_equal(short.values, long.values[:count], equal_nan=True)
    )


def _live(complete: list[Checkpoint], notes: list[Note]) -> History | None:
    read: dict[int, History | None] = {}

    def readable(candidates: list[Checkpoint]) -> History | None:
        for each in candidates:
            if each.step not in read:
                read[each.step] = _try(each, notes)
            if read[each.step] is not None:
                return read[each.step]
        return None

    newest = readable(sorted(complete, key=lambda each: (each.written, each.step), reverse=True))
    highest = readable(sorted(complete, key=lambda each: each.step, reverse=True))
    if newest is None or highest is None or newest.step == highest.step:
        return newest
    # A copied folder has meaningless times, but its histories still continue each other.
    return highest if is_prefix(newest.loss, highest.loss) else newest


def _try(checkpoint: Checkpoint, notes: list[Note]) -> History | None:
    name = checkpoint.state.parent.name
    try:
        history = read_state(checkpoint.state)
    except RunCorrupt as error:
        notes.append(Note("unreadable_checkpoint", {"checkpoint": name, "error": str(error)}))
        return None
    if history.step != checkpoint.step:
        notes.append(Note("misnamed_checkpoint", {"checkpoint": name, "step": history.step or 0}))
        return None
    return history


def _root(folder: Path, notes: list[Note]) -> History | None:
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        return read_state(path)
    except RunCorrupt as error:
        notes.append(Note("unreadable_root", {"error": str(error)}))
        return None


def _is_newer(root: History, checkpoint: History) -> bool:
    """Whether the state in the output folder itself continues a checkpoint, or belongs to a later run."""
    is_later = (root.written or 0) >= (checkpoint.written or 0)
    if (root.step or 0) >= (checkpoint.step or 0):
        return is_later or is_prefix(checkpoint.loss, root.loss)
    return is_later and not is_prefix(root.loss, checkpoint.loss)


def _with_pace(history: History, siblings: list[Checkpoint]) -> History:
    elder = [each for each in siblings if each.step <= (history.step or 0)]
    pace: Pace | None = None
    if len(elder) > 1:
        times = np.array([each.written for each in elder])
        pace = pace_between(np.array([each.step for each in elder]), times, "checkpoint_times")
    return dataclasses.replace(history, pace=history.pace or pace)


def _nothing(folder: Path, complete: list[Checkpoint], unfinished: list[int], notes: list[Note]) -> RunNotFound:
    errors = [str(note.about["error"]) for note in notes if "error" in note.about]
    if errors:
        return RunNotFound(errors[0] if len(errors) == 1 else f"{errors[0]} (and {len(errors) - 1} more like it)")
    if complete:
        return RunNotFound(f"{folder}: no checkpoint whose state matches the step in its name")
    if unfinished:
        return RunNotFound(f"{folder}: checkpoint-{unfinished[-1]} has no {FILE} yet, so it is incomplete")
    return RunNotFound(f"{folder}: {FILE} no longer exists")


def _listed(steps: list[int]) -> str:
    shown = ", ".join(map(str, steps[:6]))
    return f"{shown}, ..." if len(steps) > 6 else shown
