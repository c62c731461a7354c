"""The only place that opens the files of a run: regular files inside its folder, up to a size.

A run folder may come from anybody. A name in it may be a pipe that nobody writes to, an endless device, or a link to
somewhere else. The run folder itself and its parents may be links; nothing inside it may.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vario.core.errors import RunCorrupt
from vario.core.run_files.mirrors import mirror_of

MOST_FILE_BYTES = 1 << 37
"""The size limit for any file. Files that are read completely have their own limit."""
ATTEMPTS = 5
"""A file of a mirror may be replaced between two looks at it."""

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_file(path: Path, depth: int, most_bytes: int = MOST_FILE_BYTES) -> io.FileIO:
    """Open a file `depth` levels below the run's folder; 1 is directly in it.

    Raises FileNotFoundError if there is none, and RunCorrupt if it must not be read.
    """
    mirror = mirror_of(path)
    if mirror is not None:
        mirror.looked_at(path)
    for _ in range(ATTEMPTS):
        if mirror is not None:
            mirror.prepare(path)
        descriptor = _checked(path, depth, most_bytes, _FILE if mirror is None else _FILE | os.O_RDWR)
        file = io.FileIO(descriptor, "rb") if mirror is None else mirror.filled(path, descriptor)
        if file is not None:
            return file
        os.close(descriptor)
    raise RunCorrupt(f"{path}: changes faster than it can be read")


def _checked(path: Path, depth: int, most_bytes: int, flags: int) -> int:
    descriptor = _opened(path, depth, flags)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise RunCorrupt(f"{path}: {_KINDS.get(stat.S_IFMT(found.st_mode), 'something')}, not a file; not read")
        if found.st_size > most_bytes:
            raise RunCorrupt(f"{path}: has {found.st_size:,} bytes, but the limit is {most_bytes:,}; not read")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_bytes(path: Path, depth: int, most_bytes: int) -> bytes:
    """Read all bytes of a file."""
    with open_file(path, depth, most_bytes) as file:
        try:
            # It may grow while it is read: the rest is read next time.
            found = file.read(most_bytes)
        except OSError as error:
            raise RunCorrupt(f"{path}: cannot be read: {error.strerror}") from error
    return found or b""


def list_names(folder: Path, depth: int) -> list[str]:
    """Return the sorted names in a folder `depth` levels below the run's folder; empty if there is no such folder."""
    _look_at(folder)
    try:
        descriptor = _opened(folder, depth, _FOLDER)
    except (FileNotFoundError, NotADirectoryError):
        return []
    try:
        return sorted(os.listdir(descriptor))
    finally:
        os.close(descriptor)


@contextmanager
def entries_of(folder: Path, depth: int) -> Iterator[Iterator[os.DirEntry[str]]]:
    """Yield the entries of a folder; raises FileNotFoundError or NotADirectoryError if there is none."""
    _look_at(folder)
    descriptor = _opened(folder, depth, _FOLDER)
    try:
        with os.scandir(descriptor) as entries:
            yield entries
    finally:
        os.close(descriptor)


def no_links(path: str, flags: int) -> int:
    """An `opener` for `open` that opens a run's file for writing and does not follow links."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


def _look_at(folder: Path) -> None:
    if (mirror := mirror_of(folder)) is not None:
        mirror.looked_at(folder)


def _opened(path: Path, depth: int, flags: int) -> int:
    """Open a descriptor level by level from the run's folder, so that no link is followed."""
    inside = path.parts[len(path.parts) - depth :]
    root = path.parents[depth - 1] if depth else path
    at = -1
    try:
        at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for place, name in enumerate(inside, 1):
            above, at = at, os.open(name, flags if place == len(inside) else _FOLDER, dir_fd=at)
            os.close(above)
    except OSError as error:
        if at >= 0:
            os.close(at)
        raise _told(error, path, depth) from error
    return at


def _told(error: OSError, path: Path, depth: int) -> Exception:
    for link in (path, *path.parents)[:depth]:
        if os.path.islink(link):
            return RunCorrupt(f"{link}: is a link; links inside a run are not followed")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return type(error)(error.errno, error.strerror, str(path))
    if error.errno == errno.ENXIO:
        return RunCorrupt(f"{path}: a socket or a device, not a file; not read")
    return RunCorrupt(f"{path}: cannot be opened: {error.strerror}")
