"""The list of runs, and one run at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from vario.runs.views.vitals import Vital
from vario.web.bodies.findings import Incident
from vario.web.served import LeftOut


class Pace(TypedDict):
    """How far a run is; null where nobody knows."""

    step: int | None
    total_steps: int | None
    progress: float | None
    """From 0 to 1."""
    eta_seconds: float | None


class RunRow(Pace):
    """One run in the list."""

    run: str
    """Its path below the served folder; names it in all other requests."""
    name: str
    group: str | None
    """The same in runs that one process made one after the other."""
    state: str
    started: float
    """Unix seconds."""
    ended: float | None
    loss: float | None
    loss_is_found: bool
    """Whether vario found the loss itself: nobody logged one."""
    spark: Sequence[float]
    """The course of the loss in few points."""
    critical: int
    """How many incidents have the severity `page`."""
    warning: int
    """How many incidents have the severity `warn`."""
    world_size: int
    host: str
    error: str | None
    is_read: bool
    """Whether more than its header was read; of very many runs the rest follows by events."""


class RunList(TypedDict):
    """All runs below the served folder."""

    folder: str
    runs: list[RunRow]
    left_out: list[LeftOut]
    cursor: str


class Session(TypedDict):
    """One start of a run; a resumed run has several."""

    first_step: int
    started: float | None
    """Unix seconds."""


class Quantity(TypedDict):
    """A quantity that a run has recorded."""

    name: str
    num_targets: int
    statistics: list[str]
    default_statistic: str
    steps: int
    """How many steps have it."""
    every: int
    """It was to be recorded every so many steps."""


class RunHome(Pace):
    """One run at a glance."""

    run: str
    name: str
    path: Path
    state: str
    error: str | None
    started: float
    ended: float | None
    steps_per_second: float | None
    world_size: int
    ranks: list[int]
    host: str
    command: str
    sessions: list[Session]
    vital: Sequence[Vital]
    quantities: list[Quantity]
    incidents: list[Incident]
    parts_off: int
    """How many parts of the monitor were switched off, and quantities that could not be merged."""
    failed_rank: int | None
    """Of several ranks the one that failed first."""
    dropped_steps: int
    cursor: str
