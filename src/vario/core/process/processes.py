"""Identifies the process that wrote something, and whether it still exists."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any


def this_process() -> dict[str, Any]:
    """Return what identifies this process, for a JSON file."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "pid": pid, "machine": _machine(), "born": _born(pid)}


def is_this(record: Mapping[str, Any]) -> bool:
    """Whether a record names this process."""
    own = this_process()
    return all(record.get(key, own[key]) == own[key] for key in ("host", "pid", "machine", "born"))


def is_gone(record: Mapping[str, Any]) -> bool | None:
    """Whether the process in a record has ended; None if that cannot be determined from here.

    That is the case on another host or in another container, where process ids mean nothing. A process with the same id
    but another start time is a different one.
    """
    pid = record.get("pid")
    if not isinstance(pid, int) or record.get("host") != socket.gethostname():
        return None
    machine, born = record.get("machine"), record.get("born")
    if machine is not None and machine != _machine():
        return None
    now_born = _born(pid)
    if now_born is None:
        return not _exists(pid)
    if machine is not None and born is not None:
        return bool(now_born != born)
    # Written by an older vario: a process that is younger than the record only reuses the id.
    opened = record.get("opened")
    return isinstance(opened, (int, float)) and _unix_seconds(now_born) > opened


def _born(pid: int) -> int | None:
    """The start time of a local process, in ticks since boot; None if it is gone or unknown."""
    try:
        # Fields after the command's closing parenthesis; the 20th of them is the start.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _exists(pid: int) -> bool:
    """Whether such a process exists, if its start time is unknown."""
    try:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
            return False
    except (OSError, IndexError):
        pass  # no /proc, or one that shows only the user's own processes
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # another user's
    return True


@cache
def _machine() -> str | None:
    """Identifies one boot of one machine and one process namespace on it; None if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return hashlib.sha256(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:16]
    except OSError:
        return None


def _unix_seconds(born: int) -> float:
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - since_boot + born / os.sysconf("SC_CLK_TCK")
