"""Endpoints for the list of runs, and the overview of one run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vario.core.elements.bins import QUANTITY as DISTRIBUTION
from vario.core.elements.channels import QUANTITY as CHANNEL
from vario.core.errors import RunError, VarioError
from vario.core.process.ending import OVER
from vario.runs.files.unmerged import find_unmerged
from vario.runs.findings.time_verdict import time_verdict
from vario.runs.notes.notes import RunNote, note_of
from vario.runs.run import Run
from vario.runs.table.summary import RunSummary, read_summary
from vario.runs.table.summary_file import SummaryFile
from vario.runs.views.speed.throughput import read_throughput, throughput_lines
from vario.runs.views.status.vitals import Pace, read_vitals
from vario.web import bodies
from vario.web.addresses.cursor import cursor_of
from vario.web.addresses.incidents import described
from vario.web.addresses.run_parts import failed_rank_of, host_of, quantities_of, sessions_of
from vario.web.api.answers import FRESH_SECONDS, Endpoint
from vario.web.api.parameters import Parameter
from vario.web.reading import guarded
from vario.web.served import LeftOut, Served, Stamp

RUN = Parameter(
    "run",
    "The run: its path below the served folder, from /api/runs; '.' if the folder itself is a run.",
    is_required=True,
)
AGAIN_SECONDS = 60.0
"""A run that cannot be read is retried when one of its files has changed, or after this long."""
TABLE_SECONDS = 40.0
"""The time limit for a table, which needs all runs."""
SHORT_SECONDS = 0.3
"""The time limit for the list; runs not read by then have only name and start time."""


class RunRows:
    """The rows of the list, read again only when a file of the run has changed."""

    def __init__(self, served: Served, seconds: float = SHORT_SECONDS) -> None:
        self._served = served
        self._seconds = seconds
        self._known: dict[str, _Known] = {}
        self._failed: dict[str, _Failed] = {}
        self._gone: dict[str, int] = {}
        """The version since which a run no longer exists."""
        self._version = 0
        self._birth = f"{time.time_ns():x}"
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._is_ended = False
        self._notes: dict[str, tuple[str | None, RunNote]] = {}
        self._stored: dict[Path, SummaryFile] = {}
        """Of each served folder; read with its first run."""

    def end(self) -> None:
        """Stop reading runs."""
        self._is_ended = True

    def read(self, seconds: float | None = None) -> bodies.RunList:
        """Read all runs, newest first, within a time limit, so that the first list of very many runs is fast."""
        until = time.monotonic() + (self._seconds if seconds is None else seconds)
        names, left_out = self._served.names()
        changed = {name: self._served.changed(name) for name in names}
        self._notes = self._served.notes(names)
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
        self._save([row["run"] for row in reversed(rows) if row["is_read"]], len(rows))
        return {
            "folder": self._served.name,
            "is_writable": self._served.is_writable,
            "runs": rows,
            "left_out": left_out,
            "cursor": self.cursor,
        }

    def summaries(self, seconds: float = TABLE_SECONDS) -> tuple[list[RunSummary], int]:
        """Return all runs that can be read, newest first, and how many could not be read in time."""
        rows = self.read(seconds)["runs"]
        with self._lock:
            found = [self._known[row["run"]].summary for row in rows if row["run"] in self._known]
        read = [summary for summary in found if summary is not None]
        return read, len(rows) - len(read)

    @property
    def cursor(self) -> str:
        """The version of the rows."""
        return f"{self._birth}.{self._version}"

    def since(self, cursor: str) -> bodies.NewRows:
        """Return the rows that changed since then, and the removed runs; all rows if the cursor is unknown."""
        birth, _, version = cursor.partition(".")
        seen = int(version) if birth == self._birth and version.isdecimal() and len(version) < 19 else -1
        rows = self.read()["runs"]
        with self._lock:
            fresh = {name for name, known in self._known.items() if known.version > seen}
            gone = [name for name, version in self._gone.items() if version > seen]
        return {"runs": [row for row in rows if row["run"] in fresh], "gone": gone, "is_whole": seen < 0}

    def _row(self, name: str, changed: int, until: float) -> bodies.RunRow:
        known = self._known.get(name)
        # A run that has ended does not change unless its folder does, so a check of the folder is enough.
        if known is not None and known.is_settled and known.changed == changed:
            if known.noted == self._notes.get(name):
                return known.row
            return self._note(name, changed, known.stamp, known.row, known.summary)
        if self._is_ended or time.monotonic() > until:
            if known is not None:
                return known.row
            return self._note(name, changed, (), guarded(_short_row, self._served, name))
        # Two requests for the list read each run once. A slow run does not block later requests.
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
            summary = self._summary(name, lambda: read_summary(self._served.open(name, stamp), name))
            return self._note(name, changed, stamp, _row(summary), summary)
        if known.row["state"] in ("running", "stalled"):
            # The state also depends on the clock and on processes.
            row = known.row | {"state": self._served.open(name, stamp).state}
        else:
            row = known.row
        return self._note(name, changed, stamp, row, known.summary)

    def _summary(self, name: str, read: Callable[[], RunSummary]) -> RunSummary:
        root, rest = self._served.split(name)
        if root not in self._stored:
            self._stored[root] = SummaryFile(root)
        return self._stored[root].read(rest, name, root / rest, read)

    def _save(self, names: Sequence[str], num_runs: int) -> None:
        """Store the summaries once all runs are read, so that the next server has them at once."""
        if not self._served.is_writable or len(names) < num_runs:
            return
        below: dict[Path, list[str]] = {}
        for name in names:
            root, rest = self._served.split(name)
            below.setdefault(root, []).append(rest)
        with self._reading:
            for root, stored in self._stored.items():
                stored.save(below.get(root, []))

    def _note(
        self, name: str, changed: int, stamp: Stamp, row: bodies.RunRow, summary: RunSummary | None = None
    ) -> bodies.RunRow:
        noted = self._notes.get(name)
        if summary is not None:
            note = note_of({} if noted is None else {name: noted}, name, summary.id)
            summary = replace(summary, note=note)
            row = {**row, **_noted(summary)}
        with self._lock:
            known = self._known.get(name)
            if known is None or known.row != row:
                self._version += 1
                version = self._version
            else:
                version = known.version
            if summary is not None and summary.brief.state != row["state"]:
                summary = replace(summary, brief=replace(summary.brief, state=row["state"]))
            self._known[name] = _Known(changed, stamp, version, row, summary, noted)
            self._gone.pop(name, None)
        return row


@dataclass(frozen=True)
class _Failed:
    """Why a run could not be read, and its files at that time."""

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
    summary: RunSummary | None
    """None if only its header was read."""
    noted: tuple[str | None, RunNote] | None = None

    @property
    def is_settled(self) -> bool:
        """Whether it cannot change any more."""
        return bool(self.row["is_read"]) and self.row["state"] in OVER


def _row(summary: RunSummary) -> bodies.RunRow:
    found = summary.brief
    return {
        "run": summary.run,
        "name": summary.name,
        **_noted(summary),
        "group": summary.group,
        "state": found.state,
        "started": found.started,
        "ended": found.ended,
        **_pace(found.pace),
        "loss": found.loss,
        "loss_is_found": found.loss_is_found,
        "spark": found.spark,
        "incidents": _counts(summary.incidents),
        "world_size": found.world_size,
        "host": found.host,
        "command": found.command,
        "commit": found.commit,
        "branch": found.branch,
        "error": found.error,
        "is_read": True,
    }


def _noted(summary: RunSummary) -> bodies.Noted:
    """What people say about a run, as fields of its row."""
    note = summary.note
    return {
        "title": summary.title,
        "tags": note.tags,
        "note": note.text,
        "note_by": note.by,
        "is_starred": note.is_starred,
        "is_archived": note.is_archived,
    }


def _short_row(served: Served, name: str) -> bodies.RunRow:
    """The row from the header alone; the rest follows."""
    header = served.header(name)
    return {
        "run": name,
        "name": Path(name).name if name != "." else served.name,
        "title": Path(name).name if name != "." else served.name,
        "tags": (),
        "note": "",
        "note_by": "",
        "is_starred": False,
        "is_archived": False,
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
        "incidents": _counts({}),
        "world_size": int(header.get("world_size") or 1),
        "host": "",
        "command": str(header.get("command") or ""),
        "commit": "",
        "branch": "",
        "error": None,
        "is_read": False,
    }


def _counts(severities: Mapping[str, int]) -> bodies.SeverityCounts:
    return {"note": severities.get("note", 0), "warn": severities.get("warn", 0), "page": severities.get("page", 0)}


def _pace(pace: Pace) -> bodies.Pace:
    return {
        "step": pace.step,
        "total_steps": pace.total_steps,
        "progress": pace.progress,
        "eta_seconds": pace.eta_seconds,
    }


def rows_of(served: Served) -> RunRows:
    """Return the rows of a served folder, shared by all requests."""
    found: RunRows = served.shared("rows", lambda: RunRows(served))
    return found


def runs(served: Served, values: Mapping[str, Any]) -> bodies.RunList:
    """Return all runs below the served folder."""
    return {**rows_of(served).read(), "is_writable": served.is_writable}


def run(served: Served, values: Mapping[str, Any]) -> bodies.RunHome:
    """Return the overview of one run."""
    found = served.open(values["run"])
    vitals = read_vitals(found)
    speed = read_throughput(found)
    incidents = found.incidents
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
        "host": host_of(found),
        "command": found.command,
        "sessions": sessions_of(found),
        "vital": vitals.vitals,
        "time": time_verdict(found),
        "throughput": [] if speed is None else throughput_lines(speed),
        "quantities": quantities_of(found),
        "incidents": [described(incident) for incident in incidents],
        "parts_off": len(found.parts_off) + len(find_unmerged(found)),
        "failed_rank": failed_rank_of(found),
        "dropped_steps": found.dropped_steps,
        "num_attachments": len(found.attachments),
        "has_precision": _has_precision(found),
        "cursor": str(cursor_of(found, len(incidents))),
    }


def _has_precision(run: Run) -> bool:
    chosen = {DISTRIBUTION, CHANNEL}.intersection(run.config.get("quantities") or ())
    return bool(chosen - {one.quantity for one in run.not_offered})


ENDPOINTS = (
    Endpoint(
        "/api/runs", "All runs below the served folder, newest first.", runs, body=bodies.RunList, is_cached=False
    ),
    Endpoint(
        "/api/run",
        "The overview of one run: progress, vital signs, what was recorded.",
        run,
        (RUN,),
        body=bodies.RunHome,
        fresh_seconds=FRESH_SECONDS,
    ),
)
