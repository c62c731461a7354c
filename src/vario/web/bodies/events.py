"""The bodies of the events of /api/live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from vario.web.bodies.findings import Incident
from vario.web.bodies.numbers import Floats, Steps
from vario.web.bodies.runs import RunRow


class VitalValue(TypedDict):
    """The newest value of a vital sign."""

    name: str
    target: str
    value: float
    unit: str


class Progress(TypedDict):
    """The progress of the run."""

    step: int | None
    state: str
    total_steps: int | None
    progress: float | None
    """From 0 to 1."""
    eta_seconds: float | None
    steps_per_second: float | None
    vital: list[VitalValue]


class _Columns(TypedDict):
    steps: Steps
    targets: list[str]
    """Names that are new with this event."""
    values: list[Floats]
    """One list per step, in the order of the names sent so far."""
    bad: list[tuple[int, int]]
    """Row and column of each NaN or Inf."""


class NewColumns(_Columns, total=False):
    """New columns of a heat map."""

    order: list[str]
    """All names so far; the first event of a stream has it."""


class NewCurve(TypedDict):
    """New points of one curve."""

    quantity: str
    target: str
    statistic: str
    rank: int | str
    steps: Steps
    values: Floats
    bad: npt.NDArray[np.bool_]
    """Where there is a NaN or Inf."""
    times: Floats
    """Unix seconds at which each step ended."""


class NewPoints(TypedDict):
    """New points of all requested curves."""

    curves: list[NewCurve]


class NewRows(TypedDict):
    """Changes in the list of runs."""

    runs: Sequence[RunRow]
    """New and changed rows."""
    gone: list[str]
    """Runs that no longer exist."""
    is_whole: bool
    """Whether this is the complete list, because the server does not know the cursor."""


class Reset(TypedDict):
    """Too much was missed, or the run restarted: load everything again."""


class Problem(TypedDict):
    """The run cannot be read; the stream ends."""

    error: str


class Bye(TypedDict):
    """The run is over; the stream ends."""

    state: str


class LiveEvents(TypedDict, total=False):
    """The body of each event, by its name."""

    progress: Progress
    heat: NewColumns
    points: NewPoints
    incident: Incident
    runs: NewRows
    reset: Reset
    problem: Problem
    bye: Bye
