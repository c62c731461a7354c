"""Whose folder is it? Checks before a run is written, and the JSON files beside the rows."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vario.errors import RunCorrupt, RunTaken, RunTooNew
from vario.sinks import RunHeader
from vario.sinks.encoding import FORMAT

RANK_FOLDER = re.compile(r"rank\d+")


@dataclass(frozen=True)
class Claim:
    """What was found at the run's place, and how this session continues it."""

    session: int
    sessions: list[dict[str, Any]]
    """The sessions before this one."""
    run: dict[str, Any] | None
    """`run.json` as it was found."""
    dropped_steps: int = 0
    """Steps this rank could not record in earlier sessions."""


def leading_rank(header: RunHeader) -> int:
    """The rank that writes `run.json`: 0, or the lowest one that records."""
    return int(min(header.config.get("ranks") or [0]))


def claim(header: RunHeader) -> Claim:
    """See whether this run may be written there; raises a RunError if it may not, an OSError if nobody can tell."""
    run = read_json(header.path / "run.json")
    own = read_json(header.path / f"rank{header.rank}" / "rank.json")
    if run is not None and int(run.get("format", 0)) > FORMAT:
        raise RunTooNew(f"{header.path}: written by a newer vario (format {run['format']}); pip install -U vario")
    if not header.resume:
        _refuse_taken(header, run, own)
        return Claim(0, [], run if header.rank != leading_rank(header) else None)
    if own is not None and _is_written_by_another(own):
        raise RunTaken(f"{header.path}: process {own['pid']} is still writing this run. Stop it first.")
    dropped = 0 if own is None else int(own.get("dropped_steps") or 0)
    if run is None:
        return Claim(0, [], None, dropped)
    sessions = list(run.get("sessions", []))
    if header.rank == leading_rank(header):
        return Claim(len(sessions), sessions, run, dropped)
    # The leading rank may or may not have added this session yet; this rank's own count tells which.
    session = len(sessions) if own is None else int(own.get("session", 0)) + 1
    if session not in (len(sessions) - 1, len(sessions)):
        session = len(sessions)
    return Claim(session, sessions[:session], run, dropped)


def _refuse_taken(header: RunHeader, run: dict[str, Any] | None, own: dict[str, Any] | None) -> None:
    advice = "Choose another name, or continue it with resume = true (--resume)."
    leads = header.rank == leading_rank(header)
    if own is not None or (run is not None and leads):
        raise RunTaken(f"{header.path}: this folder already holds a run. {advice}")
    if run is not None and run.get("world_size") != header.world_size:
        raise RunTaken(f"{header.path}: this folder holds another run. {advice}")
    if header.path.is_dir():
        for entry in sorted(os.listdir(header.path)):
            if not RANK_FOLDER.fullmatch(entry) and not entry.startswith("run.json"):
                raise RunTaken(f"{header.path}: this folder holds '{entry}', which is no part of a run. {advice}")


def _is_written_by_another(own: dict[str, Any]) -> bool:
    pid = own.get("pid")
    if own.get("state") != "running" or own.get("host") != socket.gethostname() or pid in (None, os.getpid()):
        return False
    # A process that is younger than the record only inherited the number: containers hand out the same few again.
    started = process_started(int(pid))
    return started is not None and started <= float(own.get("opened", 0))


def process_started(pid: int) -> float | None:
    """Unix seconds at which a process of this machine started; None when it is gone or the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, IndexError, ValueError):
        return None
    if fields[0] in "ZX":
        return None
    return time.time() - uptime + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None where there is no such file."""
    try:
        content = json.loads(path.read_text(encoding="utf8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise RunCorrupt(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(content, dict):
        raise RunCorrupt(f"{path}: expected an object, found {type(content).__name__}")
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a JSON file at once: a reader sees the old one or the new one, never half of it."""
    unfinished = path.with_name(path.name + ".tmp")
    try:
        unfinished.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf8")
        os.replace(unfinished, path)
    except OSError:
        # A full disk leaves an empty file behind; the folder itself may be what is missing.
        if unfinished.exists():
            unfinished.unlink()
        raise
