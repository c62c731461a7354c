"""How a run fares: the JSON files beside its rows."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vario.errors import RunCorrupt, RunTooNew
from vario.runs.store_reader import FORMAT

STALLED_SECONDS = 600.0
"""A run that says it is running but wrote nothing for this long has stalled."""


@dataclass(frozen=True)
class PartOff:
    """A part of the monitor that failed and was switched off."""

    rank: int
    part: str
    step: int | None
    error: str


def read_run_json(folder: Path) -> dict[str, Any]:
    """The content of `run.json`; refuses what is damaged or too new."""
    content = read_json(folder / "run.json")
    if content is None:
        raise RunCorrupt(f"{folder / 'run.json'}: has vanished")
    version = content.get("format")
    if not isinstance(version, int):
        raise RunCorrupt(f"{folder / 'run.json'}: has no format number")
    if version > FORMAT:
        raise RunTooNew(f"{folder}: written by a newer vario (format {version}); pip install -U vario")
    return content


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is no such file."""
    try:
        content = json.loads(path.read_text(encoding="utf8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunCorrupt(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(content, dict):
        raise RunCorrupt(f"{path}: expected an object, found {type(content).__name__}")
    return content


def state(folder: Path, run: dict[str, Any], ranks: list[dict[str, Any]], now: float | None = None) -> str:
    """running, finished, crashed or stalled: what the files say, checked against the processes of this machine."""
    if run.get("state") == "crashed" or any(rank.get("state") == "crashed" for rank in ranks):
        return "crashed"
    if run.get("state") != "running":
        return str(run.get("state"))
    if any(_is_dead(rank) for rank in ranks):
        return "crashed"
    now = time.time() if now is None else now
    return "stalled" if now - _last_sign(folder) > STALLED_SECONDS else "running"


def _is_dead(rank: dict[str, Any]) -> bool:
    pid = rank.get("pid")
    if rank.get("state") != "running" or rank.get("host") != socket.gethostname() or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _last_sign(folder: Path) -> float:
    signs = [folder / "run.json", *folder.glob("rank*/rank.json"), *folder.glob("rank*/*.live.arrow")]
    times = [0.0]
    for sign in signs:
        try:
            times.append(sign.stat().st_mtime)
        except FileNotFoundError:
            continue  # became a part since we looked
    return max(times)
