"""A run in one line of a list: what it is, how it fares, and its loss, each file read once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vario.runs.files import status
from vario.runs.files.arrays import numbers
from vario.runs.files.rank_failures import what_failed
from vario.runs.reader import RunReader
from vario.runs.views.loss_names import choose_losses
from vario.runs.views.vitals import (
    TOTALS,
    Pace,
    Values,
    Vitals,
    make_pace,
    median_seconds,
    read_vitals,
    spark_of,
)

ROWS_READ = 300_000
"""Plain numbers up to so many are read whole; of more, the loss alone."""


@dataclass(frozen=True)
class Brief:
    """One line."""

    state: str
    started: float
    ended: float | None
    error: str | None
    world_size: int
    host: str
    pace: Pace
    loss: float | None
    loss_is_found: bool
    """Whether vario found it, and nobody logged it."""
    spark: tuple[float, ...]


def read_brief(run: RunReader) -> Brief:
    """Read the line of a run."""
    header, ranks = status.read_run_json(run.path), status.read_ranks(run.path)
    sessions = status.sessions(run.path, header)
    state = status.state(run.path, header, ranks)
    present = status.in_session(ranks, len(sessions) - 1)
    states = status.rank_states(run.path, present, len(sessions) - 1)
    error = what_failed(states) or header.get("error")
    noted = [int(content["last_step"]) for content in present if content.get("last_step") is not None]
    pace, loss = _numbers(run, sessions, noted, state == "running")
    ended = header.get("ended")
    return Brief(
        state=state,
        started=float(header.get("started") or 0.0),
        ended=None if ended is None else float(ended),
        error=None if error is None else str(error),
        world_size=int(header.get("world_size") or 1),
        host=next((str(content.get("host") or "") for content in ranks), ""),
        pace=pace,
        loss=loss.value,
        loss_is_found=loss.is_found,
        spark=loss.spark,
    )


@dataclass(frozen=True)
class _Loss:
    """The last loss and the course of it."""

    value: float | None = None
    is_found: bool = False
    spark: tuple[float, ...] = ()


def _numbers(run: RunReader, sessions: list[dict[str, Any]], noted: list[int], is_running: bool) -> tuple[Pace, _Loss]:
    """How far it is, and its loss."""
    ranks = run.ranks
    if not ranks:
        return make_pace(None, None, None, is_running), _Loss()
    reader = run.reader(ranks[0], "scalar")
    if sum(piece.num_rows for piece in reader.pieces()) > ROWS_READ:
        return _of(read_vitals(run, most=1))
    table = reader.read(["step", "target", "value"], sessions)
    if not table.num_rows:
        return make_pace(max(noted, default=None), None, None, is_running), _Loss()
    steps, values = numbers(table.column("step")), numbers(table.column("value"))
    target = table.column("target").combine_chunks()
    names, codes = target.dictionary.to_pylist(), numbers(target.indices)

    def series(name: str) -> Values:
        rows = np.flatnonzero(codes == names.index(name))
        found: Values = values[rows[np.argsort(steps[rows], kind="stable")]]
        return found

    total = next((float(series(name)[-1]) for name in TOTALS if name in names), None)
    seconds = median_seconds(series("step_seconds")) if "step_seconds" in names else None
    pace = make_pace(max([*noted, int(steps.max())]), total, seconds, is_running)
    chosen = next(iter(choose_losses(names, lambda name: len(series(name)))), None)
    if chosen is None:
        return pace, _Loss()
    rank = chosen.ranks_to_read(ranks)
    course = run.series(chosen.target, "scalar", rank=rank).values if rank == "all" else series(chosen.target)
    return pace, _Loss(float(course[-1]), chosen.is_found, spark_of(course))


def _of(vitals: Vitals) -> tuple[Pace, _Loss]:
    loss = vitals.loss
    return vitals.pace, _Loss() if loss is None else _Loss(loss.value, loss.is_found, loss.spark)
