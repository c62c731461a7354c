"""The folders in which mirrors keep what they fetched, and how much that may be altogether."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from vario.core.errors import RunError
from vario.remote.sizes import read_size

FOLDER_VARIABLE = "VARIO_CACHE"
SIZE_VARIABLE = "VARIO_CACHE_BYTES"
FOLDER = "mirrors"
"""Below that folder, which may be anybody's: nothing else in it is touched."""
DEFAULT_BYTES = 2 << 30
INDEX = "index"
"""A file that says what is there; when it was written last is when the mirror was used last."""
LOCK = "lock"
MOST_COPIES = 64
"""So many processes may read the same place at a time: each has a copy of its own."""


_NAME = re.compile(r"[0-9a-f]{20}(-[0-9]+)?")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where mirrors are kept: `VARIO_CACHE`, or `vario` in the user's cache folder."""
    if chosen := environment.get(FOLDER_VARIABLE):
        return Path(os.path.expanduser(chosen)) / FOLDER
    above = environment.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(above) / "vario" / FOLDER


def most_bytes(environment: Mapping[str, str] = os.environ) -> int:
    """Return how much all mirrors may keep: `VARIO_CACHE_BYTES`, such as `500MB`, or else 2 GB."""
    text = environment.get(SIZE_VARIABLE, "")
    return read_size(text, SIZE_VARIABLE) if text else DEFAULT_BYTES


class OwnFolder:
    """The folder of one mirror, which no other process uses meanwhile."""

    def __init__(self, url: str, above: Path) -> None:
        self._above = above
        self.path, self._lock = _taken(url, above)

    def make_room(self, own_bytes: int, most: int) -> int:
        """Delete mirrors that nobody uses until this one fits; return how much this one may keep."""
        others = sorted(
            (_used(folder), _size(folder), folder)
            for folder in self._above.iterdir()
            if folder != self.path and _NAME.fullmatch(folder.name) and (folder / LOCK).is_file()
        )
        taken = sum(size for _, size, _ in others)
        for _, size, folder in others:
            if taken + own_bytes <= most:
                break
            if _delete(folder):
                taken -= size
        return max(0, most - taken)

    def close(self) -> None:
        """Leave the folder to the next process."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _taken(url: str, above: Path) -> tuple[Path, int]:
    name = hashlib.sha256(url.encode("utf8", "surrogateescape")).hexdigest()[:20]
    try:
        os.makedirs(above, mode=0o700, exist_ok=True)
        for number in range(MOST_COPIES):
            folder = above / (name if not number else f"{name}-{number}")
            folder.mkdir(mode=0o700, exist_ok=True)
            if (lock := _locked(folder)) is not None:
                return folder.resolve(), lock
    except OSError as error:
        raise RunError(f"{above}: cannot keep what is read there: {error}. Set {FOLDER_VARIABLE}.") from error
    raise RunError(f"{above}: {MOST_COPIES} processes read {url} at the same time")


def _locked(folder: Path) -> int | None:
    """A descriptor that holds a folder; None if another process does, or has just deleted it."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_nlink:
            return lock
    except BlockingIOError:
        pass
    os.close(lock)
    return None


def _delete(folder: Path) -> bool:
    if (lock := _locked(folder)) is None:
        return False
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
    return True


def _used(folder: Path) -> float:
    try:
        return (folder / INDEX).stat().st_mtime
    except OSError:
        return 0.0


def _size(folder: Path) -> int:
    """Bytes on the disk: files that are only partly there take less than their size."""
    total = 0
    for above, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(above, name)).st_blocks * 512
    return total
