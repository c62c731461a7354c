"""`run.json`: what a run is, written by the leading rank alone."""

from __future__ import annotations

import socket
import threading
import uuid
from typing import Any

from vario.core import run_format
from vario.core.run_files.shapes import read_json
from vario.core.run_header import RunHeader
from vario.store.folder import Claim, leading_rank, write_json


class RunRecord:
    """Writes `run.json` if this rank leads, and knows which format the run has."""

    def __init__(self, header: RunHeader, claim: Claim, first_step: int) -> None:
        self._header = header
        self._path = header.path / run_format.RUN
        self._is_leading = header.rank == leading_rank(header)
        # The writer writes it, and the thread that merges parts.
        self._lock = threading.Lock()
        self._params_written: dict[str, Any] | None = None
        before = claim.run or {}
        self._format = max(run_format.FORMAT, int(before.get("format") or 0))
        session: dict[str, Any] = {"first_step": first_step, "started": header.started}
        self._content: dict[str, Any] = {
            "format": self._format,
            "id": before["id"] if before else uuid.uuid4().hex[:12],
            "started": before["started"] if before else header.started,
            "group": before.get("group", header.group),
            "world_size": header.world_size,
            "mesh": header.mesh,
            "config": header.config,
            "versions": header.versions,
            "not_offered": header.not_offered,
            "command": header.command,
            "host": socket.gethostname(),
            "sessions": [*claim.sessions, session],
        }

    @property
    def has_new_params(self) -> bool:
        """Whether hyper-parameters were found that are not written yet."""
        return self._is_leading and self._header.params.values is not self._params_written

    def write(self, state: str, error: str | None, ended: float | None) -> None:
        """Write it, if this rank leads."""
        if not self._is_leading:
            return
        with self._lock:
            params = self._header.params
            self._params_written = params.values
            self._content["sessions"][-1] |= {"params": params.values, "param_sources": params.sources}
            self._content["format"] = self._format
            write_json(self._path, {**self._content, "ended": ended, "state": state, "error": error})

    def announce_merged_parts(self) -> None:
        """Let all ranks merge their parts, if this rank leads."""
        if self._is_leading and self._format < run_format.REWRITTEN_FORMAT:
            self.allow_merged_parts()

    def allow_merged_parts(self) -> bool:
        """Make readers that do not know merged parts refuse this run, if this rank leads; return whether they do."""
        if self._format < run_format.REWRITTEN_FORMAT and self._is_leading:
            self._format = run_format.REWRITTEN_FORMAT
            self.write("running", None, None)
        elif self._format < run_format.REWRITTEN_FORMAT:
            found = read_json(self._path, 1) or {}
            self._format = int(found.get("format") or run_format.FORMAT)
        return self._format >= run_format.REWRITTEN_FORMAT
