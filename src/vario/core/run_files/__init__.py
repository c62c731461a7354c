"""The one place that opens the files of a run: regular files that lie inside its folder, up to a size.

A run folder may come from anybody. A name in it may be a pipe that is never written to, a device without end, or a link
to somewhere else. The run folder itself, and whatever lies above it, may be a link; nothing inside it may.
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

MOST_FILE_BYTES = 1 << 37
"""Of any file. Those that are read whole have a limit of their own."""

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
    """Open a file that lies `depth` levels below the run's folder; 1 is right in it.

    Raises FileNotFoundError where there is none, and RunCorrupt where there is something that is not to be read.
    """
    descriptor = _opened(path, depth, _FILE)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise RunCorrupt(f"{path}: {_KINDS.get(stat.S_IFMT(found.st_mode), 'something')} and not a file; not read")
        if found.st_size > most_bytes:
            raise RunCorrupt(f"{path}: has {found.st_size:,} bytes, more than the {most_bytes:,} it can have; not read")
        return io.FileIO(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, depth: int, most_bytes: int) -> bytes:
    """All bytes of a file."""
    with open_file(path, depth, most_bytes) as file:
        try:
            # It may grow while it is read: what comes later is read the next time.
            found = file.read(most_bytes)
        except OSError as error:
            raise RunCorrupt(f"{path}: cannot be read: {error.strerror}") from error
    return found or b""


def list_names(folder: Path, depth: int) -> list[str]:
    """The names in a folder `depth` levels below the run's folder, sorted; none where there is no such folder."""
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
    """The entries of a folder, one after the other; FileNotFoundError or NotADirectoryError where there is none."""
    descriptor = _opened(folder, depth, _FOLDER)
    try:
        with os.scandir(descriptor) as entries:
            yield entries
    finally:
        os.close(descriptor)


def no_links(path: str, flags: int) -> int:
    """Opens a file of a run for writing, as an `opener` of `open`: a link in its place would lead to another file."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


def _opened(path: Path, depth: int, flags: int) -> int:
    """A descriptor, reached from the run's folder level by level, so that no link on the way is ever followed."""
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
            return RunCorrupt(f"{link}: links inside a run are not followed, and this is one")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return type(error)(error.errno, error.strerror, str(path))
    if error.errno == errno.ENXIO:
        return RunCorrupt(f"{path}: a socket or a device and not a file; not read")
    return RunCorrupt(f"{path}: cannot be opened: {error.strerror}")
