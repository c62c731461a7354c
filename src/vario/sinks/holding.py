"""One process writes one rank of a run at a time: whoever makes `rank<N>/writer-<session>-<nth>.json` first.

The file is made whole and at once (by a hard link, or exclusively), which is atomic on NFS as well. The one with the
highest numbers counts. It is never removed before a higher one is there, so two that come at the same instant cannot
both have it. It says which process made it: where that is gone and left nothing, `nth` counts on.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Any

from vario.core.errors import RunError, RunTaken
from vario.core.processes import is_gone, is_this, this_process
from vario.core.run_files import list_names, open_file
from vario.core.run_files.shapes import read_json
from vario.core.run_format import LIVE
from vario.sinks.agreement import file_system_time, publish

OBSERVED_SECONDS = 15.0
"""Processes elsewhere cannot be looked up: one that wrote nothing for so long is taken to be gone."""
POLL_SECONDS = 0.5
WRITER = re.compile(r"writer-(\d+)-(\d+)\.json")

Number = tuple[int, int]
"""Session, and how many processes have tried it before."""


def refuse_held(path: Path, folder: Path, own: dict[str, Any] | None, is_restarted: bool) -> Number | None:
    """Raise a RunTaken where another process writes this rank; the latest number that was found to be free.

    A launcher that starts its ranks again has ended them before.
    """
    if own is not None and own.get("state") == "running":
        _refuse_alive(path, folder, own, is_restarted)
    latest = _latest(folder)
    if latest is not None and (own is None or int(own.get("session") or 0) < latest[0]):
        # Its process has come as far as this, and has not described itself.
        with contextlib.suppress(FileNotFoundError):
            _refuse_alive(path, folder, read_json(_path(folder, latest), 2) or {}, is_restarted)
    return latest


def hold(folder: Path, session: int, free: Number | None) -> Number | None:
    """Become the one writer of this rank in this session; None where another process was faster, or is ahead."""
    os.makedirs(folder, exist_ok=True)
    mine = session, free[1] + 1 if free is not None and free[0] == session else 0
    if not publish(_path(folder, mine), this_process()):
        return None
    if _latest(folder) != mine:
        _path(folder, mine).unlink(missing_ok=True)  # its place was free because one that is ahead has cleared it
        return None
    for number in _numbers(folder):
        if number < mine:
            _path(folder, number).unlink(missing_ok=True)
    return mine


def has_lost(folder: Path, mine: Number) -> bool:
    """Whether another process has taken over, since this one gave no sign for long."""
    try:
        latest = _latest(folder)
    except (OSError, RunError):
        return False  # nobody can tell now
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
    """Whether anything in a rank's folder changes while it is looked at; at once where the last change is long past."""
    before = _signs(folder)
    deadline = max((when for when, _ in before.values()), default=0.0) + OBSERVED_SECONDS
    # By the clock of the file system; and not longer, should that be wrong.
    latest = time.monotonic() + OBSERVED_SECONDS
    while file_system_time(folder) < deadline and time.monotonic() < latest:
        time.sleep(POLL_SECONDS)
        if _signs(folder) != before:
            return True
    return False


def _signs(folder: Path) -> dict[str, tuple[float, int]]:
    """When the files of a rank were last written, and their sizes. Opened, for NFS answers from memory otherwise."""
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
