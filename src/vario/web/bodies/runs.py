"""The list of runs, and the overview of one run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from vario.runs.findings.time_verdict import TimeVerdict
from vario.runs.views.status.vitals import Vital
from vario.web.bodies.findings import Incident
from vario.web.served import LeftOut


class Pace(TypedDict):
    """The progress of a run; null if unknown."""

    step: int | None
    total_steps: int | None
    progress: float | None
    """From 0 to 1."""
    eta_seconds: float | None


class SeverityCounts(TypedDict):
    """The number of incidents by severity."""

    note: int
    warn: int
    page: int


class Noted(TypedDict):
    """What people say about a run."""

    title: str
    """The name it was given, or its folder's."""
    tags: Sequence[str]
    note: str
    note_by: str
    """Who changed any of this last; empty if unknown."""
    is_starred: bool
    is_archived: bool


class RunRow(Pace, Noted):
    """One run in the list."""

    run: str
    """Its path below the served folder, which identifies it in all other requests."""
    name: str
    group: str | None
    """Shared by runs that one process started one after another."""
    state: str
    started: float
    """Unix seconds."""
    ended: float | None
    loss: float | None
    loss_is_found: bool
    """Whether vario found the loss because the script logged none."""
    spark: Sequence[float]
    """The loss curve in few points."""
    incidents: SeverityCounts
    world_size: int
    host: str
    command: str
    commit: str
    """Of git; empty if unknown."""
    branch: str
    error: str | None
    is_read: bool
    """Whether more than its header was read; with very many runs the rest follows as events."""


class RunList(TypedDict):
    """All runs below the served folder."""

    folder: str
    is_writable: bool
    """Whether notes on runs can be changed here."""
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
    """The number of steps that have it."""
    every: int
    """Its interval in steps."""


class RunHome(Pace):
    """The overview of one run."""

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
    throughput: list[str]
    """Samples, tokens and operations a second, in words."""
    time: TimeVerdict | None
    """Where the time of its steps goes, and what limits its speed; null if too little was recorded."""
    quantities: list[Quantity]
    incidents: list[Incident]
    parts_off: int
    """The number of disabled parts of the monitor, and of quantities that could not be merged."""
    failed_rank: int | None
    """With several ranks, the one that failed first."""
    dropped_steps: int
    num_attachments: int
    """The number of figures and tables kept beside it."""
    has_precision: bool
    """Whether it records distributions or channels."""
    cursor: str
