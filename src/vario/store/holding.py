"""One process at a time writes one rank of a run: the first to create `rank<N>/writer-<session>-<nth>.json`.

The file is created in full in one operation (a hard link, or exclusive creation), which is atomic on NFS as well. The
file with the highest numbers counts. It is never removed before a higher one exists, so two processes that arrive at
the same instant cannot both get it. It names the process that made it: if that is gone and left nothing, `nth`
increases.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Any

from vario.core.errors import RunError, RunTaken
from vario.core.process.processes import is_gone, is_this, this_process
from vario.core.run_files import list_names, open_file
from vario.core.run_files.shapes import read_json
from vario.core.run_format import LIVE
from vario.store.rank_agreement import file_system_time, publish

OBSERVED_SECONDS = 15.0
"""Processes on other hosts cannot be looked up: one that wrote nothing for this long counts as gone."""
POLL_SECONDS = 0.5
WRITER = re.compile(r"writer-(\d+)-(\d+)\.json")

Number = tuple[int, int]
"""Session, and how many processes have tried it before."""


def refuse_held(path: Path, folder: Path, own: dict[str, Any] | None, is_restarted: bool) -> Number | None:
    """Raise RunTaken if another process writes this rank; return the latest number found to be free.

    A launcher that restarts its ranks has ended the old ones first.
    """
    if own is not None and own.get("state") == "running":
        _refuse_alive(path, folder, own, is_restarted)
    latest = _latest(folder)
    if latest is not None and (own is None or int(own.get("session") or 0) < latest[0]):
        # Its process got this far and has not described itself yet.
        with contextlib.suppress(FileNotFoundError):
            _refuse_alive(path, folder, read_json(_path(folder, latest), 2) or {}, is_restarted)
    return latest


def hold(folder: Path, session: int, free: Number | None) -> Number | None:
    """Become the only writer of this rank in this session; return None if another process was faster or is ahead."""
    os.makedirs(folder, exist_ok=True)
    mine = session, free[1] + 1 if free is not None and free[0] == session else 0
    if not publish(_path(folder, mine), this_process()):
        return None
    if _latest(folder) != mine:
        _path(folder, mine).unlink(missing_ok=True)  # its place was free only because a process ahead has cleared it
        return None
    for number in _numbers(folder):
        if number < mine:
            _path(folder, number).unlink(missing_ok=True)
    return mine


def has_lost(folder: Path, mine: Number) -> bool:
    """Whether another process has taken over because this one was silent for long."""
    try:
        latest = _latest(folder)
    except (OSError, RunError):
        return False  # cannot be determined now
    return latest is not None and latest > mine


def _refuse_alive(path: Path, folder: Path, record: dict[str, Any], is_restarted: bool) -> None:
    gone = is_gone(record)
    if is_this(record):
        return
    if gone is False:
        raise RunTaken(f"{path}: process {record.get('pid')} is still writing this run. Stop it first.")
    if gone is None and not is_restarted and _gives_signs(folder):
        where = f"process {record.get('pid')} of {record.get('host')}"
        raise RunTaken(f"{path}: {where} is still writing this run. Stop it first.")


def _gives_signs(folder: Path) -> bool:
    """Whether a rank's folder changes while we watch it; returns at once if the last change is long ago."""
    before = _signs(folder)
    deadline = max((when for when, _ in before.values()), default=0.0) + OBSERVED_SECONDS
    # By the clock of the file system, with a limit in case that clock is wrong.
    latest = time.monotonic() + OBSERVED_SECONDS
    while file_system_time(folder) < deadline and time.monotonic() < latest:
        time.sleep(POLL_SECONDS)
        if _signs(folder) != before:
            return True
    return False


def _signs(folder: Path) -> dict[str, tuple[float, int]]:
    """Return when each file of a rank was last written, and its size. Opens the files, since NFS caches status."""
    found = {}
    for name in list_names(folder, 1):
        if name.endswith((LIVE, ".json")):
            with contextlib.suppress(OSError), open_file(folder / name, 2) as file:
                status = os.fstat(file.fileno())
                found[name] = status.st_mtime, status.st_size
    return found


def _numbers(folder: Path) -> list[Number]:
    matches = map(WRITER.fullmatch, list_names(folder, 1))
    return [(int(match[1]), int(match[2])) for match in matches if match]


def _latest(folder: Path) -> Number | None:
    return max(_numbers(folder), default=None)


def _path(folder: Path, number: Number) -> Path:
    return folder / f"writer-{number[0]}-{number[1]}.json"
