"""vario's own runs: the plain numbers logged in them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vario.core.errors import RunError
from vario.logs import log_format
from vario.logs.history import LOSS, Curve, History, Note, pace_between, renamed
from vario.logs.names import canonical_names
from vario.logs.rows import Rows
from vario.logs.text_files import make_history

if TYPE_CHECKING:
    from vario.runs.views.status.losses import LossSeries


@log_format("vario_run", (), order=5)
def vario_run(path: Path) -> History:
    """A vario run, or the latest run of a folder."""
    from vario.runs.run import open_run
    from vario.runs.views.status.losses import read_losses

    run = open_run(path)
    rows = Rows()
    rank = run.ranks[0] if run.ranks else 0
    if run.ranks and "scalar" in run.quantities(rank):
        table: Any = run.to_arrow("scalar", rank)
        columns = (table.column(name).to_pylist() for name in ("step", "time", "target", "value"))
        for step, time, target, value in zip(*columns, strict=True):
            rows.add(step, {target: value}, time=time)
    curves, notes = rows.curves()
    loss = next((found for found in read_losses(run) if found.is_found), None)
    if loss is None:
        curves = renamed(curves, canonical_names(curves))
    else:
        own = _with_values(curves.pop(loss.target), loss)
        curves = {**renamed(curves, canonical_names(curves)), LOSS: own}
        notes.append(Note("loss_found", {"name": loss.target}))
    clock = curves.get(LOSS) or max(curves.values(), key=len, default=None)
    pace = pace_between(clock.steps, clock.times, "row_times") if clock is not None else None
    state = run.state
    if state in ("crashed", "stalled", "interrupted"):
        notes.append(Note(f"run_{state}", {"error": run.error or ""}))
    history = make_history(run.path, "vario_run", curves, notes, pace=pace)
    return dataclasses.replace(history, is_finished=state == "finished")


def _with_values(curve: Curve, loss: LossSeries) -> Curve:
    """The loss over all ranks, with the times of the first rank."""
    if np.array_equal(curve.steps, loss.steps):
        return dataclasses.replace(curve, values=loss.values)
    unknown = np.full(len(loss.steps), np.nan)
    return Curve(loss.steps, loss.values, unknown, unknown)


def is_run(folder: Path) -> bool:
    """Whether a folder is or contains a vario run; imports the run reader only if it looks like one."""
    if not any(folder.glob("rank*")) and not any(folder.glob("*/rank*")):
        return False
    from vario.runs.files.run_paths import find_run

    try:
        find_run(folder.resolve())
    except RunError:
        return False
    return True
