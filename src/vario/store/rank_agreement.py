"""How ranks agree without communication: the first to arrive writes a small numbered file, the others find it.

Each time a job starts (also when its launcher restarts it), the first of its ranks to arrive adds an entry to a series
of files, and all ranks take the entry of their start. How do they recognise it? Ranks meet in a rendezvous before they
train, and call vario.watch after it, so the entry is added after every rank's process has started. Hence an entry
younger than this process belongs to this start, and an older one to an earlier start. Both times come from the same
clock, that of the file system: a new file shows its time, and the kernel reports how long ago this process started. The
clocks of the hosts need not agree.
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
"""One is enough, two if another rank was faster; more only on a disk that loses files."""

Content = dict[str, Any]

_taken: dict[tuple[int, str, int], list[int]] = {}
"""Entries this process has already taken, by (process, series, rank): the next Monitor takes the next one."""


@dataclass(frozen=True)
class Entry:
    """One file of a series."""

    number: int
    written: float
    """By the clock of the file system."""
    content: Content | None
    """None while it is being written, on file systems that cannot create it in one operation."""


@dataclass(frozen=True)
class Proposal:
    """What a rank that finds no entry knows when it makes one."""

    nth: int
    """How many entries this process took before."""
    earlier: list[Entry]
    """Entries of this launch from before it restarted its ranks; none if the launcher never restarts them."""


def agree(
    folder: Path,
    series: str,
    rank: int,
    propose: Callable[[Proposal], Content],
    *,
    lowest: Callable[[], int] = lambda: 0,
    is_ours: Callable[[Content], bool] = lambda _: True,
    may_start_again: bool = False,
    poll_seconds: float = POLL_SECONDS,
    limit_seconds: float = LIMIT_SECONDS,
) -> Entry:
    """Return the entry of this start, which all ranks take; `propose` makes it if this rank is the first to arrive.

    `lowest` is the smallest number a new entry may have; `may_start_again`: whether the launcher may restart its ranks.
    Raises OSError if the folder cannot be used.
    """
    os.makedirs(folder, exist_ok=True)
    taken = _taken.setdefault((os.getpid(), str((folder / series).absolute()), rank), [])
    now = file_system_time(folder)
    began, launched = now - process_age(os.getpid()), now - (_launcher_age() if may_start_again else 0.0)
    deadline = time.monotonic() + limit_seconds
    for _ in range(ATTEMPTS):
        # Before looking: entries added after we looked cannot make us choose a number past theirs.
        at_least = lowest()
        entries = _entries(folder, series)
        current = [entry for entry in entries if entry.written > began and entry.number > max(taken, default=-1)]
        while any(entry.content is None for entry in current) and time.monotonic() < deadline:
            time.sleep(poll_seconds)
            current = [again for again in _entries(folder, series) if again.number in {one.number for one in current}]
        # The lowest one: a rank that is ahead may already have added those of its next Monitors.
        for entry in current:
            if entry.content is not None and is_ours(entry.content):
                taken.append(entry.number)
                return entry
        number = max([at_least, *(entry.number + 1 for entry in entries), *(used + 1 for used in taken)])
        earlier = [entry for entry in entries if launched < entry.written <= began]
        publish(folder / f"{series}-{number}.json", propose(Proposal(len(taken), earlier)))
    raise OSError(errno.ETIMEDOUT, f"{folder}: files created there cannot be found afterwards")


def note_taken(folder: Path, series: str, rank: int, number: int) -> None:
    """Count an entry that needed no file as taken by this process."""
    _taken.setdefault((os.getpid(), str((folder / series).absolute()), rank), []).append(number)


def process_age(pid: int) -> float:
    """Return for how many seconds a process of this machine has run; raises OSError if the system does not say."""
    try:
        # Fields after the command's closing parenthesis; the 20th is the start in ticks since boot.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (AttributeError, IndexError, ValueError) as error:
        raise OSError(errno.ENOSYS, f"the age of process {pid} is unknown") from error


def _launcher_age() -> float:
    try:
        return process_age(os.getppid())
    except OSError:
        return 0.0  # its parent is outside this container: nothing is known about earlier starts


def file_system_time(folder: Path) -> float:
    """Return the time now, by the clock of the file system of a folder."""
    probe = folder / f".now-{uuid.uuid4().hex}"
    try:
        probe.write_text("")
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _entries(folder: Path, series: str) -> list[Entry]:
    """Return all entries, lowest number first."""
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
    """Create this file in full in one operation; False if another process has created it before."""
    text = json.dumps(content) + "\n"
    draft = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        draft.write_text(text, encoding="utf8")
        try:
            os.link(draft, path)
        except FileExistsError:
            # NFS repeats a request whose answer was lost, and then finds the file it has created itself.
            return draft.stat().st_nlink == 2
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
            # No hard links there: the file appears empty for a moment, and readers wait.
            try:
                with open(path, "x", encoding="utf8") as file:
                    file.write(text)
            except FileExistsError:
                return False
        return True
    finally:
        draft.unlink(missing_ok=True)
