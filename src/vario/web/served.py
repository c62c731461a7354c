"""The runs under the served folder: a path that leads out of it is rejected."""

from __future__ import annotations

import copy
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vario.core.errors import RunError, RunNotFound
from vario.core.text import suggestion
from vario.runs.files.status import is_run, read_run_json
from vario.runs.notes.notes import RunNote, read_notes
from vario.runs.run import Run

DEPTH = 4
"""How deep below the served folder a run may be."""
MOST_FOLDERS = 20_000
RUNS_KEPT = 32
RANK = re.compile(r"rank\d+")

Stamp = tuple[tuple[str, int, int], ...]
"""Names, sizes and modification times of a run's files: if they are the same, so is the run."""


class LeadsOut(RunNotFound):
    """A link, or a path, that leads out of the served folder."""


@dataclass(frozen=True)
class LeftOut:
    """Something that looks like a run but cannot be shown."""

    path: str
    error: str


class Served:
    """The runs under one folder, or under several with a name each, which then begins the names of their runs."""

    def __init__(self, folders: Path | Mapping[str, Path], is_writable: bool = False) -> None:
        named = folders if isinstance(folders, Mapping) else {"": folders}
        self.roots = {name: folder.resolve() for name, folder in named.items()}
        self.folder = next(iter(self.roots.values()))
        """The first folder, beside whose runs is kept what concerns all."""
        self.is_writable = is_writable
        """Whether notes on runs can be changed."""
        self._free: list[tuple[str, Stamp, Run]] = []
        self._borrowed = threading.local()
        self._shared: dict[str, Any] = {}
        self._lock = threading.RLock()

    def shared(self, name: str, make: Callable[[], Any]) -> Any:
        """Return an object shared by all requests for this name, created on first use."""
        with self._lock:
            if name not in self._shared:
                self._shared[name] = make()
            return self._shared[name]

    @property
    def name(self) -> str:
        """The folder's name, or the names of all."""
        return ", ".join(self.roots) if "" not in self.roots else self.folder.name or str(self.folder)

    def for_reading(self) -> Served:
        """Return the same runs, of which nothing can be changed: for a user who may only read."""
        found = copy.copy(self)
        found.is_writable = False
        return found

    def split(self, name: str) -> tuple[Path, str]:
        """Return the folder that a run's name begins with, and the path of the run below it."""
        if "" in self.roots:
            return self.folder, name
        first, _, rest = name.partition("/")
        if first not in self.roots:
            raise RunNotFound(f"run: '{name[:80]}' is in no served folder. {suggestion(first[:80], self.roots)}")
        return self.roots[first], rest or "."

    def place(self, name: str) -> Path:
        """Return where a run is, or would be; `path_of` checks it."""
        root, rest = self.split(name)
        return root / rest

    def names(self) -> tuple[list[str], list[LeftOut]]:
        """Return all runs below, relative to the folder, and what was skipped."""
        left_out: list[LeftOut] = []
        found = [
            name if not root else root if name == "." else f"{root}/{name}"
            for root, folder in self.roots.items()
            for name in _walk(folder, f"{root}/" if root else "", left_out)
        ]
        return sorted(found), left_out

    def path_of(self, name: str) -> Path:
        """Return the folder of a run by its relative name; raises if it is not a run below the served folder."""
        parts = Path(name).parts
        if Path(name).is_absolute() or ".." in parts or "\\" in name or "\0" in name:
            raise LeadsOut(f"run: '{name}' is not a path below the served folder")
        root, rest = self.split(name)
        if len(Path(rest).parts) > DEPTH + 1:
            raise LeadsOut(f"run: '{name}' is not a path below the served folder")
        place = root / rest
        if not _is_inside(place, root):
            raise LeadsOut(f"run: '{name}' leads out of the served folder")
        try:
            if is_run(place):
                return place
        except OSError as error:
            raise RunNotFound(f"run: '{name}' cannot be read: {error.strerror}") from error
        known, _ = self.names()
        raise RunNotFound(f"run: no run '{name}'. {suggestion(name, known)}")

    def stamp(self, name: str) -> Stamp:
        """Return a value that changes whenever a run's files do; raises if a link in the run leads out of the
        folder."""
        return tuple(sorted(_entries(self.path_of(name), self.split(name)[0])))

    def changed(self, name: str) -> int:
        """Return when a run's folder last changed, in nanoseconds."""
        try:
            return os.stat(self.place(name)).st_mtime_ns
        except OSError:
            return 0

    def notes(self, names: Iterable[str]) -> dict[str, tuple[str | None, RunNote]]:
        """Return the notes on runs, with the ids they were written for; reads the file of each folder once."""
        found: dict[str, tuple[str | None, RunNote]] = {}
        books: dict[Path, dict[str, tuple[str | None, RunNote]]] = {}
        for name in names:
            place = self.place(name)
            if place in self.roots.values() or not place.name:
                continue
            book = books.get(place.parent)
            if book is None:
                book = books[place.parent] = read_notes(place.parent)
            if place.name in book:
                found[name] = book[place.name]
        return found

    def header(self, name: str) -> dict[str, Any]:
        """Read only the header of a run."""
        path = self.path_of(name)
        for entry in _listed(path):
            if entry.is_symlink():
                _entry(entry, "", self.split(name)[0])
        return read_run_json(path)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Runs opened inside belong to this thread; afterwards they are cached for the next reader.

        So closed parts are not read again, and no run is read by two threads at a time.
        """
        borrowed: dict[str, tuple[Stamp, Run]] = {}
        before = getattr(self._borrowed, "runs", {})
        self._borrowed.runs = borrowed
        try:
            yield
        finally:
            self._borrowed.runs = before
            with self._lock:
                self._free += [(name, *found) for name, found in borrowed.items()]
                del self._free[:-RUNS_KEPT]

    def open(self, name: str, stamp: Stamp | None = None) -> Run:
        """Open the run of this name; `stamp` if it is already known."""
        borrowed: dict[str, tuple[Stamp, Run]] = getattr(self._borrowed, "runs", {})
        if name in borrowed:
            return borrowed[name][1]
        # The files at the top of a run are read when it is opened; folders have no size.
        header = tuple(entry for entry in stamp or self.stamp(name) if "/" not in entry[0] and entry[1])
        with self._lock:
            at = next((at for at, found in enumerate(self._free) if found[:2] == (name, header)), None)
            run = None if at is None else self._free.pop(at)[2]
        # A known stamp means that its path was checked.
        run = run or Run(self.place(name) if stamp else self.path_of(name))
        borrowed[name] = (header, run)
        return run


def _walk(root: Path, prefix: str, left_out: list[LeftOut]) -> Iterator[str]:
    """The runs below a folder, relative to it; `prefix` begins the names of what is skipped."""
    if is_run(root):
        yield "."
        return
    waiting = [(root, 0)]
    num_folders = 0
    while waiting and num_folders < MOST_FOLDERS:
        folder, depth = waiting.pop()
        num_folders += 1
        for entry in _listed(folder):
            path = Path(entry.path)
            name = str(path.relative_to(root))
            try:
                if entry.name.startswith(".") or not entry.is_dir():
                    continue
                if entry.is_symlink():
                    if not _is_inside(path, root) and is_run(path):
                        left_out.append(LeftOut(prefix + name, "a link that leads out of the served folder"))
                elif is_run(path):
                    if is_text(name):
                        yield name
                    else:
                        left_out.append(LeftOut(prefix + name, "its name is not valid UTF-8. Rename the folder."))
                elif depth < DEPTH:
                    waiting.append((path, depth + 1))
            except OSError as error:
                left_out.append(LeftOut(prefix + name, str(error)))


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _entries(path: Path, folder: Path) -> Iterator[tuple[str, int, int]]:
    """The files of a run: at its top, of its ranks, and the folders of quantities."""
    for entry in _listed(path):
        is_rank = RANK.fullmatch(entry.name) is not None
        if is_rank or entry.name == "watch" or not _is_folder(entry):
            yield _entry(entry, "", folder)
        if (is_rank or entry.name == "watch") and entry.is_dir():
            for inner in _listed(Path(entry.path)):
                # Also check for links in folders of parts: the folder's time changes when one is added.
                yield _entry(inner, f"{entry.name}/", folder)
                if _is_folder(inner):
                    for part in _listed(Path(inner.path)):
                        if part.is_symlink():
                            _entry(part, f"{entry.name}/{inner.name}/", folder)


def is_text(name: str) -> bool:
    """Whether a name can be used in an address; Python decodes bytes that are not UTF-8 as surrogates."""
    return name.encode("utf8", "replace").decode() == name


def _is_inside(path: Path, folder: Path) -> bool:
    try:
        return path.resolve().is_relative_to(folder)
    except (OSError, RuntimeError, ValueError):
        return False  # circular links, or not a possible file name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _entry(entry: os.DirEntry[str], above: str, folder: Path) -> tuple[str, int, int]:
    if entry.is_symlink() and not _is_inside(Path(entry.path), folder):
        raise LeadsOut(f"{above}{entry.name} is a link that leads out of the served folder")
    try:
        found = entry.stat()
    except FileNotFoundError:
        return f"{above}{entry.name}", 0, 0  # it became a part in the meantime
    except OSError as error:
        raise RunError(f"{above}{entry.name}: {error.strerror}") from error
    size = 0 if stat.S_ISDIR(found.st_mode) else found.st_size
    return f"{above}{entry.name}", size, found.st_mtime_ns
