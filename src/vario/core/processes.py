"""Which process wrote something, and whether it is still there."""

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
    """What tells this process from all others, for a JSON file."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "pid": pid, "machine": _machine(), "born": _born(pid)}


def is_this(record: Mapping[str, Any]) -> bool:
    """Whether a record names this process."""
    own = this_process()
    return all(record.get(key, own[key]) == own[key] for key in ("host", "pid", "machine", "born"))


def is_gone(record: Mapping[str, Any]) -> bool | None:
    """Whether the process that a record names has ended; None where it cannot be looked up from here.

    That is on another host, and in another container: process numbers mean nothing there. A process with the same
    number that began at another time is another one.
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
    # Written by an older vario: a process that is younger than the record only inherited the number.
    opened = record.get("opened")
    return isinstance(opened, (int, float)) and _unix_seconds(now_born) > opened


def _born(pid: int) -> int | None:
    """When a process of this machine began, in ticks since boot; None when it is gone or the system does not tell."""
    try:
        # Fields after the command's closing parenthesis; the 20th of them is the start.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def _exists(pid: int) -> bool:
    """Whether there is such a process, where nothing says when it began."""
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
        return True  # somebody else's
    return True


@cache
def _machine() -> str | None:
    """One boot of one machine, and one space of process numbers on it; None where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return hashlib.sha256(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:16]
    except OSError:
        return None


def _unix_seconds(born: int) -> float:
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - since_boot + born / os.sysconf("SC_CLK_TCK")
