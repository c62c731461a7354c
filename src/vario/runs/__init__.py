"""Runs as they lie on disk: open one, read its series, frames and tables, live or later."""

from __future__ import annotations

from vario.runs.desync import Desync, first_desync
from vario.runs.downsample import downsample
from vario.runs.onset import Onset, first_bad
from vario.runs.run import Run, Series, list_runs, open_run
from vario.runs.status import PartOff

__all__ = [
    "Desync",
    "Onset",
    "PartOff",
    "Run",
    "Series",
    "downsample",
    "first_bad",
    "first_desync",
    "list_runs",
    "open_run",
]
