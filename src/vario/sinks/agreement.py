"""How ranks agree without talking: the first to come writes a small numbered file, the others find it.

Each time a job is started (also when its launcher starts it again), the first of its ranks to come adds an entry to a
series of files, and all ranks take the entry that belongs to them. Which one is that? Ranks meet in a rendezvous before
they train, and watch a model after it; so whoever adds the entry does so after every rank's process has begun. Hence an
entry that is younger than this process is of this start, and one that is older is of an earlier one. Both times are
read off the same clock, that of the file system: a file made now tells what it says, and the kernel tells how long ago
this process began. The clocks of the hosts need not agree.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vario.core.run_files import read_bytes

POLL_SECONDS = 0.05
LIMIT_SECONDS = 20.0
MOST_BYTES = 1 << 16
ATTEMPTS = 8
"""One is enough, two where another rank was faster; more only on a disk that does not keep what it is given."""

Content = dict[str, Any]

_taken: dict[tuple[int, str, int], list[int]] = {}
"""Entries this process has taken already, by (process, series, rank): the next Monitor takes the next one."""


@dataclass(frozen=True)
class Entry:
    """One file of a series."""

    number: int
    written: float
    """By the clock of the file system."""
    content: Content | None
    """None while it is being written, where a file system cannot show it all at once."""


@dataclass(frozen=True)
class Proposal:
    """What a rank that finds nothing knows when it makes an entry."""

    nth: int
    """How many entries this process took before."""
    earlier: list[Entry]
    """Those of this launch, from before it started its ranks again; none where the launcher starts them once."""


def agree(
    folder: Path,
    series: str,
    rank: int,
    propose: Callable[[Proposal], Content],
    *,
    lowest: Callable[[], int] = lambda: 0,
    is_ours: Callable[[Content], bool] = lambda _: True,
    poll_seconds: float = POLL_SECONDS,
    limit_seconds: float = LIMIT_SECONDS,
) -> Entry:
    """The entry of this start, which all ranks take; `propose` makes it if this rank is the first to come.

    `lowest` is the smallest number a new entry may have. Raises an OSError when the folder cannot be used.
    """
    os.makedirs(folder, exist_ok=True)
    taken = _taken.setdefault((os.getpid(), str((folder / series).absolute()), rank), [])
    now = file_system_time(folder)
    began, launched = now - process_age(os.getpid()), now - _launcher_age()
    deadline = time.monotonic() + limit_seconds
    for _ in range(ATTEMPTS):
        # Before looking: what others do after we looked cannot make us choose a number past theirs.
        at_least = lowest()
        entries = _entries(folder, series)
        current = [entry for entry in entries if entry.written > began and entry.number > max(taken, default=-1)]
        while any(entry.content is None for entry in current) and time.monotonic() < deadline:
            time.sleep(poll_seconds)
            current = [again for again in _entries(folder, series) if again.number in {one.number for one in current}]
        # The lowest one: a rank that is ahead may have added those of its next Monitors already.
        for entry in current:
            if entry.content is not None and is_ours(entry.content):
                taken.append(entry.number)
                return entry
        number = max([at_least, *(entry.number + 1 for entry in entries), *(used + 1 for used in taken)])
        earlier = [entry for entry in entries if launched < entry.written <= began]
        publish(folder / f"{series}-{number}.json", propose(Proposal(len(taken), earlier)))
    raise OSError(errno.ETIMEDOUT, f"{folder}: files that are made there are not found there")


def note_taken(folder: Path, series: str, rank: int, number: int) -> None:
    """This process goes by an entry that needed no file."""
    _taken.setdefault((os.getpid(), str((folder / series).absolute()), rank), []).append(number)


def job_mark() -> str | None:
    """What tells jobs apart that run at the same time, alike on all hosts of a job; None where nobody knew."""
    job = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if job not in ("", "none"):
        return job
    return "-".join(filter(None, map(os.environ.get, ("SLURM_JOB_ID", "MASTER_PORT")))) or None


def is_started_again() -> bool:
    """Whether the launcher is one that may start its ranks again: torchrun and its like."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def process_age(pid: int) -> float:
    """For how many seconds a process of this machine has been running; an OSError where the system does not tell."""
    try:
        # Fields after the command's closing parenthesis; the 20th of them is the start in ticks since boot.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (AttributeError, IndexError, ValueError) as error:
        raise OSError(errno.ENOSYS, f"the age of process {pid} is not known") from error


def _launcher_age() -> float:
    try:
        return process_age(os.getppid()) if is_started_again() else 0.0
    except OSError:
        return 0.0  # its parent is not of this container: nothing can be said of earlier starts


def file_system_time(folder: Path) -> float:
    """Now, by the clock of the file system that holds a folder."""
    probe = folder / f".now-{uuid.uuid4().hex}"
    try:
        probe.write_text("")
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _entries(folder: Path, series: str) -> list[Entry]:
    """All entries, lowest number first."""
    expression = re.compile(re.escape(series) + r"-(\d+)\.json")
    found = []
    for name in os.listdir(folder):
        if match := expression.fullmatch(name):
            with contextlib.suppress(FileNotFoundError):  # deleted since we listed it
                path = folder / name
                found.append(Entry(int(match[1]), path.stat().st_mtime, _parsed(read_bytes(path, 1, MOST_BYTES))))
    return sorted(found, key=lambda entry: entry.number)


def _parsed(text: bytes) -> Content | None:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def publish(path: Path, content: Content) -> bool:
    """Make this file, whole and at once; False where another process has made it before."""
    text = json.dumps(content) + "\n"
    draft = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        draft.write_text(text, encoding="utf8")
        try:
            os.link(draft, path)
        except FileExistsError:
            # NFS repeats a request whose answer was lost, and then meets what it has made itself.
            return draft.stat().st_nlink == 2
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
            # No hard links there: it appears empty for a moment, and readers wait.
            try:
                with open(path, "x", encoding="utf8") as file:
                    file.write(text)
            except FileExistsError:
                return False
        return True
    finally:
        draft.unlink(missing_ok=True)
