"""Files of runs that lie elsewhere: `open_file` fetches their bytes into a local copy when they are read.

`vario.remote.mirror` makes such a copy, a *mirror*: a folder that looks like the run, whose files have the right size,
and of which only what was read takes space. It registers here, so that whoever reads a run needs not know of it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Mirror(Protocol):
    """The local copy of a folder that lies elsewhere."""

    root: Path
    url: str
    """What it is a copy of."""

    def looked_at(self, path: Path) -> None:
        """Somebody reads or lists this: bring what is stale up to date."""

    def prepare(self, path: Path) -> None:
        """Fetch what has to be there before a file is opened."""

    def filled(self, path: Path, descriptor: int) -> io.FileIO | None:
        """Return a file that fetches what is read of it; None if another one has taken its place meanwhile."""


_known: list[Mirror] = []


def register(mirror: Mirror) -> Callable[[], None]:
    """Fetch what is read below the root of this mirror; return the undo."""
    _known.append(mirror)

    def undo() -> None:
        if mirror in _known:
            _known.remove(mirror)

    return undo


def mirror_of(path: Path) -> Mirror | None:
    """Return the mirror that a path lies in."""
    return next((mirror for mirror in _known if path.is_relative_to(mirror.root)), None) if _known else None


def place_of(path: Path) -> str:
    """Return where a path lies as a user names it: the URL if it is in a mirror."""
    mirror = mirror_of(path)
    return str(path) if mirror is None else "/".join([mirror.url, *path.relative_to(mirror.root).parts])


class PartialFile(io.FileIO):
    """A file of a mirror: what is not there yet is fetched before it is read."""

    def __init__(self, descriptor: int, size: int, fetch: Callable[[int, int, int], None]) -> None:
        """`fetch(descriptor, first, end)` makes sure that these bytes are in the file."""
        super().__init__(descriptor, "rb")
        self._size = size
        self._fetch = fetch

    def __del__(self) -> None:
        # Arrow releases files without closing them.
        self.close()

    def read(self, size: int | None = -1, /) -> Any:
        """Read bytes, fetched first."""
        at = self.tell()
        left = max(0, self._size - at)
        num = left if size is None or size < 0 else min(size, left)
        self.fetch(at, num)
        return super().read(num)

    def readall(self) -> Any:
        """Read the rest, fetched first."""
        return self.read()

    def readinto(self, buffer: Any, /) -> Any:
        """Read into a buffer, fetched first."""
        view = memoryview(buffer).cast("B")
        found = self.read(len(view))
        view[: len(found)] = found
        return len(found)

    def fetch(self, at: int, num: int) -> None:
        """Make sure that these bytes are there."""
        end = min(at + num, self._size)
        if at < end:
            self._fetch(self.fileno(), at, end)


def pread(file: io.FileIO, num: int, at: int) -> bytes:
    """Read bytes at a place of a file."""
    if isinstance(file, PartialFile):
        file.fetch(at, num)
    return os.pread(file.fileno(), num, at)
