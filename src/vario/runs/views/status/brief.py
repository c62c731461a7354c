"""One line about a run for a list: name, state and loss, reading each file once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vario.core.errors import RunCorrupt
from vario.core.machine_options import PREFIX
from vario.runs.files import status
from vario.runs.files.arrays import numbers
from vario.runs.files.folder import latest_params
from vario.runs.files.rank_failures import what_failed
from vario.runs.reader import RunReader
from vario.runs.views.curves import read_curve
from vario.runs.views.status.courses import Course, read_courses
from vario.runs.views.status.losses import choose_losses
from vario.runs.views.status.vitals import (
    SPARK_POINTS,
    TOTALS,
    Pace,
    Values,
    Vitals,
    make_pace,
    median_seconds,
    read_vitals,
    spark_of,
    speed,
)

ROWS_READ = 300_000
"""Up to this many plain numbers are read completely; beyond that from their rollups."""
MOST_NUMBERS = 60
"""The most names of a run that long."""


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
    """Whether vario found it because the script logged none."""
    spark: tuple[float, ...]
    params: Mapping[str, Any]
    """Hyper-parameters."""
    numbers: Mapping[str, Course]
    """The course of each plain number of the first rank."""
    command: str = ""
    commit: str = ""
    branch: str = ""


def read_brief(run: RunReader) -> Brief:
    """Read one run's line."""
    header, ranks = status.read_run_json(run.path), status.read_ranks(run.path)
    sessions = status.sessions(run.path, header)
    state = status.state(run.path, header, ranks)
    present = status.in_session(ranks, len(sessions) - 1)
    states = status.rank_states(run.path, present, len(sessions) - 1)
    error = what_failed(states) or header.get("error")
    noted = [int(content["last_step"]) for content in present if content.get("last_step") is not None]
    found = _numbers(run, sessions, noted, state == "running")
    ended = header.get("ended")
    return Brief(
        state=state,
        started=float(header.get("started") or 0.0),
        ended=None if ended is None else float(ended),
        error=None if error is None else str(error),
        world_size=int(header.get("world_size") or 1),
        host=next((str(content.get("host") or "") for content in ranks), ""),
        pace=found.pace,
        loss=found.loss.value,
        loss_is_found=found.loss.is_found,
        spark=found.loss.spark,
        params=latest_params(sessions),
        numbers=found.courses,
        command=str(header.get("command") or ""),
        **_code(run),
    )


def _code(run: RunReader) -> dict[str, str]:
    """Commit and branch. A run whose other files can be read is listed without them."""
    try:
        origin = run.origin
    except RunCorrupt:
        return {}
    return {"commit": origin.commit, "branch": origin.branch}


@dataclass(frozen=True)
class _Loss:
    """The last loss and its curve."""

    value: float | None = None
    is_found: bool = False
    spark: tuple[float, ...] = ()


@dataclass(frozen=True)
class _Numbers:
    """What the plain numbers say."""

    pace: Pace
    loss: _Loss = _Loss()
    courses: Mapping[str, Course] = field(default_factory=dict)


def _numbers(run: RunReader, sessions: list[dict[str, Any]], noted: list[int], is_running: bool) -> _Numbers:
    """The last step, the loss and the course of every number."""
    ranks = run.ranks
    if not ranks:
        return _Numbers(make_pace(None, None, None, is_running))
    reader = run.reader(ranks[0], "scalar")
    if sum(row_file.num_rows for row_file in reader.row_files()) > ROWS_READ:
        return _of(run, read_vitals(run, most=1))
    table = reader.read(["step", "time", "target", "value"], sessions)
    if not table.num_rows:
        return _Numbers(make_pace(max(noted, default=None), None, None, is_running))
    steps, values = numbers(table.column("step")), numbers(table.column("value"))
    target = table.column("target").combine_chunks()
    names, codes = target.dictionary.to_pylist(), numbers(target.indices)

    def series(name: str) -> Values:
        rows = np.flatnonzero(codes == names.index(name))
        found: Values = values[rows[np.argsort(steps[rows], kind="stable")]]
        return found

    total = next((float(series(name)[-1]) for name in TOTALS if name in names), None)
    seconds = median_seconds(series("step_seconds")) if "step_seconds" in names else None
    recorded, rows = np.unique(steps, return_index=True)
    rate = speed(recorded, numbers(table.column("time"))[rows], sessions)
    pace = make_pace(max([*noted, int(steps.max())]), total, seconds, is_running, rate)
    courses = read_courses(names, codes, steps, values)
    chosen = next(iter(choose_losses(names, lambda name: len(series(name)))), None)
    if chosen is None:
        return _Numbers(pace, courses=courses)
    rank = chosen.ranks_to_read(ranks)
    course = run.series(chosen.target, "scalar", rank=rank).values if rank == "all" else series(chosen.target)
    return _Numbers(pace, _Loss(float(course[-1]), chosen.is_found, spark_of(course)), courses)


def _of(run: RunReader, vitals: Vitals) -> _Numbers:
    """A long run: its loss, and other numbers from their rollups."""
    loss = vitals.loss
    rank = run.ranks[0]
    names = [name for name in run.targets("scalar", rank=rank) if not name.startswith("setting/")]
    names = sorted(names, key=lambda name: name.startswith(PREFIX))[:MOST_NUMBERS]
    curves = {name: read_curve(run, name, "scalar", "value", rank, points=4 * SPARK_POINTS) for name in names}
    courses = {
        name: Course(
            float(curve.low[0]),
            float(curve.last[-1]),
            float(np.fmin.reduce(curve.low)),
            float(np.fmax.reduce(curve.high)),
            len(curve),
        )
        for name, curve in curves.items()
        if len(curve)
    }
    told = _Loss() if loss is None else _Loss(loss.value, loss.is_found, loss.spark)
    return _Numbers(vitals.pace, told, courses)
