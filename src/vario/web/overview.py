"""The list of runs, and one run at a glance."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vario.core.ending import OVER
from vario.core.errors import RunError, VarioError
from vario.runs.files.rank_failures import first_failure
from vario.runs.files.status import read_ranks
from vario.runs.files.unmerged import find_unmerged
from vario.runs.run import Run
from vario.runs.views.brief import read_brief
from vario.runs.views.vitals import Pace, read_vitals
from vario.web import bodies
from vario.web.answers import FRESH_SECONDS, Endpoint
from vario.web.cursor import cursor_of
from vario.web.incidents import Curves, described, recorded
from vario.web.parameters import Parameter
from vario.web.reading import guarded
from vario.web.served import LeftOut, Served, Stamp

RUN = Parameter(
    "run", "The run: its path below the served folder, as /api/runs tells; '.' where that is a run.", is_required=True
)
AGAIN_SECONDS = 60.0
"""A run that cannot be read is read again when a file of it has changed, or after this long: not at every look."""
SHORT_SECONDS = 0.3
"""A list is answered after this long; of runs that were not read by then only the name and the start are told."""


class RunRows:
    """What the list says of each run, read again only when a file of the run has changed."""

    def __init__(self, served: Served, seconds: float = SHORT_SECONDS) -> None:
        self._served = served
        self._seconds = seconds
        self._known: dict[str, _Known] = {}
        self._failed: dict[str, _Failed] = {}
        self._gone: dict[str, int] = {}
        """The version since which a run is not there any more."""
        self._version = 0
        self._birth = f"{time.time_ns():x}"
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._is_ended = False

    def end(self) -> None:
        """Read no further run."""
        self._is_ended = True

    def read(self, seconds: float | None = None) -> bodies.RunList:
        """All runs, the newest first; in a limited time, so that the first look at very many is not a long wait."""
        until = time.monotonic() + (self._seconds if seconds is None else seconds)
        names, left_out = self._served.names()
        changed = {name: self._served.changed(name) for name in names}
        rows = []
        for name in sorted(names, key=changed.__getitem__, reverse=True):
            try:
                rows.append(self._row(name, changed[name], until))
            except VarioError as error:
                left_out.append(LeftOut(name, str(error)))
        with self._lock:
            for name in self._known.keys() - changed.keys():
                del self._known[name]
                self._version += 1
                self._gone[name] = self._version
            for name in self._failed.keys() - changed.keys():
                del self._failed[name]
        rows.sort(key=lambda row: (row["started"] or 0.0, row["name"]), reverse=True)
        return {"folder": self._served.name, "runs": rows, "left_out": left_out, "cursor": self.cursor}

    @property
    def cursor(self) -> str:
        """Stands for what the rows say now."""
        return f"{self._birth}.{self._version}"

    def since(self, cursor: str) -> bodies.NewRows:
        """The rows that changed since then, and the runs that went; all rows, where nobody knows that cursor."""
        birth, _, version = cursor.partition(".")
        seen = int(version) if birth == self._birth and version.isdecimal() and len(version) < 19 else -1
        rows = self.read()["runs"]
        with self._lock:
            fresh = {name for name, known in self._known.items() if known.version > seen}
            gone = [name for name, version in self._gone.items() if version > seen]
        return {"runs": [row for row in rows if row["run"] in fresh], "gone": gone, "is_whole": seen < 0}

    def _row(self, name: str, changed: int, until: float) -> bodies.RunRow:
        known = self._known.get(name)
        # Of a run that has ended nothing changes unless its folder does: many are told of by a look at that.
        if known is not None and known.is_settled and known.changed == changed:
            return known.row
        if self._is_ended or time.monotonic() > until:
            if known is not None:
                return known.row
            return self._note(name, changed, (), guarded(_short_row, self._served, name))
        # Two who read the same list read each run once. One that takes long does not hold up whoever comes after.
        if not self._reading.acquire(timeout=max(0.0, until - time.monotonic())):
            return known.row if known is not None else guarded(_short_row, self._served, name)
        try:
            return self._row_now(name, changed)
        finally:
            self._reading.release()

    def _row_now(self, name: str, changed: int) -> bodies.RunRow:
        with self._served.reading():
            stamp = guarded(self._served.stamp, name)
            failed = self._failed.get(name)
            if failed is not None and failed.stamp == stamp and time.monotonic() < failed.until:
                raise RunError(failed.error)
            try:
                return guarded(self._read, name, changed, stamp)
            except VarioError as error:
                self._failed[name] = _Failed(stamp, str(error), time.monotonic() + AGAIN_SECONDS)
                raise

    def _read(self, name: str, changed: int, stamp: Stamp) -> bodies.RunRow:
        known = self._known.get(name)
        if known is None or known.stamp != stamp or not known.row["is_read"]:
            row = _row(self._served.open(name, stamp), name)
        elif known.row["state"] in ("running", "stalled"):
            # That depends on the clock and on processes as well.
            row = known.row | {"state": self._served.open(name, stamp).state}
        else:
            row = known.row
        return self._note(name, changed, stamp, row)

    def _note(self, name: str, changed: int, stamp: Stamp, row: bodies.RunRow) -> bodies.RunRow:
        with self._lock:
            known = self._known.get(name)
            if known is None or known.row != row:
                self._version += 1
                version = self._version
            else:
                version = known.version
            self._known[name] = _Known(changed, stamp, version, row)
            self._gone.pop(name, None)
        return row


@dataclass(frozen=True)
class _Failed:
    """Why a run could not be read, and the files of that time."""

    stamp: Stamp
    error: str
    until: float


@dataclass(frozen=True)
class _Known:
    """A row, and the files it was made from."""

    changed: int
    stamp: Stamp
    version: int
    row: bodies.RunRow

    @property
    def is_settled(self) -> bool:
        """Whether it stays as it is."""
        return bool(self.row["is_read"]) and self.row["state"] in OVER


def _row(run: Run, name: str) -> bodies.RunRow:
    found = read_brief(run)
    incidents = recorded(run)
    return {
        "run": name,
        "name": run.name,
        "group": run.group,
        "state": found.state,
        "started": found.started,
        "ended": found.ended,
        **_pace(found.pace),
        "loss": found.loss,
        "loss_is_found": found.loss_is_found,
        "spark": found.spark,
        "critical": sum(one.severity == "page" for one in incidents),
        "warning": sum(one.severity == "warn" for one in incidents),
        "world_size": found.world_size,
        "host": found.host,
        "error": found.error,
        "is_read": True,
    }


def _short_row(served: Served, name: str) -> bodies.RunRow:
    """What the header says; the rest follows."""
    header = served.header(name)
    return {
        "run": name,
        "name": Path(name).name if name != "." else served.name,
        "group": header.get("group"),
        "state": str(header.get("state")),
        "started": float(header.get("started") or 0.0),
        "ended": None,
        "step": None,
        "total_steps": None,
        "progress": None,
        "eta_seconds": None,
        "loss": None,
        "loss_is_found": False,
        "spark": (),
        "critical": 0,
        "warning": 0,
        "world_size": int(header.get("world_size") or 1),
        "host": "",
        "error": None,
        "is_read": False,
    }


def _pace(pace: Pace) -> bodies.Pace:
    return {
        "step": pace.step,
        "total_steps": pace.total_steps,
        "progress": pace.progress,
        "eta_seconds": pace.eta_seconds,
    }


def sessions_of(run: Run) -> list[bodies.Session]:
    """First step and start of each session."""
    return [{"first_step": found["first_step"], "started": found.get("started")} for found in run.sessions]


def _host(run: Run) -> str:
    return next((str(content.get("host") or "") for content in read_ranks(run.path)), "")


def rows_of(served: Served) -> RunRows:
    """The rows of a served folder, the same for all who ask."""
    found: RunRows = served.shared("rows", lambda: RunRows(served))
    return found


def runs(served: Served, values: Mapping[str, Any]) -> bodies.RunList:
    """All runs below the served folder."""
    return rows_of(served).read()


def run(served: Served, values: Mapping[str, Any]) -> bodies.RunHome:
    """One run at a glance."""
    found = served.open(values["run"])
    vitals = read_vitals(found)
    incidents, curves = recorded(found), Curves(found)
    return {
        "run": values["run"],
        "name": found.name,
        "path": found.path,
        "state": found.state,
        "error": found.error,
        "started": found.started,
        "ended": found.ended,
        **_pace(vitals.pace),
        "steps_per_second": vitals.pace.steps_per_second,
        "world_size": found.world_size,
        "ranks": found.ranks,
        "host": _host(found),
        "command": found.command,
        "sessions": sessions_of(found),
        "vital": vitals.vitals,
        "quantities": _quantities(found),
        "incidents": [described(incident, curves) for incident in incidents],
        "parts_off": len(found.parts_off) + len(find_unmerged(found)),
        "failed_rank": _failed_rank(found),
        "dropped_steps": found.dropped_steps,
        "cursor": str(cursor_of(found, len(incidents))),
    }


def _failed_rank(run: Run) -> int | None:
    """Of several ranks the one that failed first."""
    first = first_failure(run.noted_rank_states) if run.world_size > 1 else None
    return None if first is None else first.rank


def _quantities(run: Run) -> list[bodies.Quantity]:
    if not run.ranks:
        return []
    every = run.config.get("every") or {}
    statistics = run.statistics
    return [
        {
            "name": name,
            "num_targets": len(run.targets(name)),
            "statistics": ["value"] if name == "scalar" else statistics,
            "default_statistic": "value" if name == "scalar" else run.usual_statistic,
            "steps": len(run.steps(name, _having(run, name))),
            "every": every.get(name, 1) if isinstance(every, Mapping) else every,
        }
        for name in run.quantities("all")
    ]


def _having(run: Run, quantity: str) -> int:
    return next(rank for rank in run.ranks if quantity in run.quantities(rank))


ENDPOINTS = (
    Endpoint(
        "/api/runs", "All runs below the served folder, the newest first.", runs, body=bodies.RunList, is_kept=False
    ),
    Endpoint(
        "/api/run",
        "One run at a glance: progress, vital signs, what was recorded.",
        run,
        (RUN,),
        body=bodies.RunHome,
        fresh_seconds=FRESH_SECONDS,
    ),
)
