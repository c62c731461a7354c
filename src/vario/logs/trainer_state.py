"""trainer_state.json of the HF Trainer, 4.x and 5.x, and of everything built on it (TRL, axolotl, unsloth, swift)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from vario.core.errors import RunCorrupt
from vario.logs import log_format
from vario.logs.history import Best, Curve, History, Note, Pace, last_step, pace_between
from vario.logs.rows import NO_ROW, Rows, number, whole
from vario.logs.text_files import read_content, written_at

FILE = "trainer_state.json"
ENDLESS = 2**62
"""A stream of unknown length has this many epochs, or more."""
JUST_WRITTEN_SECONDS = 10.0
RETRY_SECONDS = 0.2

FINAL_ROW = -1


class _History(Rows):
    """Extracts rows while the JSON is parsed, so that 200,000 of them are never in memory as dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.final: dict[str, Any] = {}

    def take(self, found: dict[str, Any]) -> Any:
        """Replace a row by its index; return any other object unchanged."""
        if "step" not in found:
            return found
        # The common types first: this runs once per row.
        named = found.pop("step")
        step = named if type(named) is int else whole(named)
        if step is None:
            return NO_ROW
        if "train_loss" in found and "loss" not in found:
            self.final = {**found, "step": step}
            return FINAL_ROW
        noted = found.pop("epoch", None)
        epoch = noted if type(noted) is float else number(noted)
        return self.add(step, found) if epoch is None else self.add(step, found, epoch)


@log_format("trainer_state", (FILE,), order=0, looks_right=lambda text: '"log_history"' in text)
def trainer_state(path: Path) -> History:
    """State of the HF Trainer: history, totals and best checkpoint."""
    return read_state(path)


def read_state(path: Path, pause: Callable[[float], None] = time.sleep, now: float | None = None) -> History:
    """Read one file. The Trainer writes it in place, so a recent file that is truncated is read a second time."""
    now = time.time() if now is None else now
    try:
        return _read(path)
    except RunCorrupt:
        if abs(now - written_at(path)) > JUST_WRITTEN_SECONDS:
            raise
        pause(RETRY_SECONDS)
        return _read(path)


def _read(path: Path) -> History:
    rows = _History()
    written = written_at(path)
    state = _parse(path, rows)
    history = state["log_history"]
    placed = [row for row in history if type(row) is int and 0 <= row < len(rows)]
    curves, notes = rows.curves(placed)
    lost = sum(1 for row in history if isinstance(row, dict) or row == NO_ROW)
    if lost:
        notes.append(Note("rows_without_step", {"count": lost}))
    # Training may have continued after it: then that row ended an earlier session.
    is_ended = FINAL_ROW in history and rows.final.get("step", -1) >= (last_step(curves) or 0)
    step, max_steps = whole(state.get("global_step")), whole(state.get("max_steps"))
    if max_steps is not None and max_steps <= 0:
        max_steps = None
    num_epochs = number(state.get("num_train_epochs"))
    if num_epochs is not None and num_epochs >= ENDLESS:
        num_epochs = None
    epoch = number(state.get("epoch"))
    is_complete = step is not None and max_steps is not None and step >= max_steps
    if is_ended and not is_complete and step is not None and max_steps is not None:
        notes.append(Note("ended_early", {"step": step, "max_steps": max_steps}))
    return History(
        path=path,
        format="trainer_state",
        curves=curves,
        step=step if step is not None else last_step(curves),
        epoch=epoch,
        max_steps=max_steps,
        num_epochs=num_epochs,
        best=_best(state),
        pace=_pace(curves, rows.final, step) if placed or is_ended else None,
        runtime_seconds=number(rows.final.get("train_runtime")) if is_ended else None,
        is_finished=is_ended or is_complete,
        written=written,
        notes=tuple(notes),
    )


def _parse(path: Path, rows: _History) -> dict[str, Any]:
    content = read_content(path)
    try:
        state = json.loads(content, object_hook=rows.take)
    except (ValueError, RecursionError) as error:
        raise RunCorrupt(f"{path}: truncated or not valid JSON: {error}") from error
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        raise RunCorrupt(f"{path}: not a Trainer state: it has no list 'log_history'")
    return state


def _best(state: dict[str, Any]) -> Best | None:
    value, step = number(state.get("best_metric")), whole(state.get("best_global_step"))
    checkpoint = state.get("best_model_checkpoint")
    if value is None and step is None and not checkpoint:
        return None
    return Best(value, step, str(checkpoint) if checkpoint else None)


def _pace(curves: dict[str, Curve], final: dict[str, Any], step: int | None) -> Pace | None:
    clock = curves.get("train_runtime")
    if clock is not None and (pace := pace_between(clock.steps, clock.values, "train_runtime")):
        return pace
    rate = number(final.get("train_steps_per_second"))
    if rate and step is not None:
        return Pace(np.array([step]), np.array([1 / rate]), "final_row")
    return None
