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
    """How far the run is."""

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
    """One list a step, in the order of names that the stream has told so far."""
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
    """Where a NaN or Inf was counted."""
    times: Floats
    """Unix seconds at which each step ended."""


class NewPoints(TypedDict):
    """New points of all curves that were asked for."""

    curves: list[NewCurve]


class NewRows(TypedDict):
    """What changed in the list of runs."""

    runs: Sequence[RunRow]
    """Rows that are new or have changed."""
    gone: list[str]
    """Runs that are not there any more."""
    is_whole: bool
    """Whether these are all there are: the server did not know what was seen before."""


class Reset(TypedDict):
    """Too much was missed, or the run began anew: ask for everything again."""


class Problem(TypedDict):
    """The run cannot be read; the stream ends."""

    error: str


class Bye(TypedDict):
    """The run is over; the stream ends."""

    state: str


class LiveEvents(TypedDict, total=False):
    """The body of each event, by the name of the event."""

    progress: Progress
    heat: NewColumns
    points: NewPoints
    incident: Incident
    runs: NewRows
    reset: Reset
    problem: Problem
    bye: Bye
