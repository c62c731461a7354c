"""The files of a mirror on this machine: sparse, of the right size, filled when they are read."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from vario.core.errors import RunCorrupt, RunError
from vario.core.run_files import MOST_FILE_BYTES
from vario.core.run_files.mirrors import PartialFile
from vario.remote.mirror.cache_folder import INDEX, OwnFolder
from vario.remote.mirror.held import (
    BLOCK_BYTES,
    FIXED,
    GROWING,
    GROWING_BYTES,
    OVERLAP_BYTES,
    SMALL,
    STATUS,
    WHOLE_BYTES,
    Held,
    kind_of,
)
from vario.remote.places import Entry, Listing, Place

log = logging.getLogger("vario")

FORMAT = 1
KEPT_SHARE = 0.9
"""How full the cache is after something was dropped: not something for each block."""


class LocalFiles:
    """Fetches bytes of files when they are read, and drops those used least recently."""

    def __init__(self, place: Place, own: OwnFolder, root: Path, most_bytes: int) -> None:
        self.root = root
        self._place = place
        self._own = own
        self._most = most_bytes
        self._limit = most_bytes
        self._files: dict[str, Held] = {}
        self._in: defaultdict[str, set[str]] = defaultdict(set)
        """Names by their first part: the run, in a folder of runs."""
        self._num_bytes = 0
        self._lock = threading.RLock()
        self._is_saved = True
        self._load()

    @property
    def num_bytes(self) -> int:
        """How many bytes are kept."""
        return self._num_bytes

    @property
    def folders(self) -> list[str]:
        """What is directly in the mirror and has files."""
        with self._lock:
            return [folder for folder, names in self._in.items() if names]

    def _names_of(self, run: str) -> list[str]:
        if not run:
            return list(self._files)
        return [name for name in self._in[run.partition("/")[0]] if name.startswith(f"{run}/")]

    def entry(self, name: str) -> Entry | None:
        """Return a file as it was listed last."""
        held = self._files.get(name)
        return None if held is None else held.entry

    # -- what is there

    def apply(self, run: str, tree: Listing, status: Mapping[str, tuple[Entry, bytes]]) -> None:
        """Make the files of a run as they are elsewhere: rows first, what vanished next, its status last."""
        above = f"{run}/" if run else ""
        with self._lock:
            rows = {above + name: entry for name, entry in tree.items() if _last(name) not in STATUS}
            # A stream becomes a part: the part is there before the stream is another one.
            for name in sorted(rows, key=lambda name: kind_of(name, 0) == GROWING):
                self._update(name, rows[name])
            stays = rows.keys() | {above + name for name in tree if _last(name) in STATUS}
            for name in self._names_of(run):
                if name not in stays:
                    self._drop(name)
            for name, (entry, content) in status.items():
                self._make(above + name, Held(entry, kind_of(name, 0), have=len(content)), content)

    def remove_run(self, run: str) -> None:
        """Delete a run that is there no more."""
        with self._lock:
            for name in self._names_of(run):
                self._drop(name)
            if run:
                shutil.rmtree(self.root / run, ignore_errors=True)

    def _update(self, name: str, entry: Entry) -> None:
        held = self._files.get(name)
        if held is not None and (held.entry.size, held.entry.tag) == (entry.size, entry.tag):
            return
        kind = kind_of(name, entry.size)
        if entry.size > MOST_FILE_BYTES:
            log.warning("%s: %s: has %s bytes; skipped", self._place.url, name, f"{entry.size:,}")
            return
        if held is not None and kind == held.kind == GROWING and entry.size >= held.entry.size:
            os.truncate(self.root / name, entry.size)
            held.entry = entry
            self._stamp(name, held)
            self._is_saved = False
            return
        self._make(name, Held(entry, kind, used=held.used if held is not None else 0.0))

    def _make(self, name: str, held: Held, content: bytes = b"") -> None:
        """Put a new file in the place of what is there; whoever reads the old one goes on with it."""
        path, made = self.root / name, self._own.path / "new"
        size = held.have = len(content)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(made, "wb") as file:
                file.write(content)
                file.truncate(max(size, held.entry.size))
                held.inode = os.fstat(file.fileno()).st_ino
            os.replace(made, path)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            log.warning("%s: %s: a file and a folder of the same name; skipped (%s)", self._place.url, name, error)
            return
        except OSError as error:
            raise RunError(f"{self.root}: cannot keep what is read there: {error}. Set VARIO_CACHE.") from error
        before = self._files.get(name)
        self._num_bytes += held.num_bytes - (0 if before is None else before.num_bytes)
        self._files[name] = held
        self._in[name.partition("/")[0]].add(name)
        self._stamp(name, held)
        self._is_saved = False

    def _stamp(self, name: str, held: Held) -> None:
        """Give a file the time that its place tells: a run that writes nothing is recognised by it."""
        when = held.entry.mtime or time.time()
        os.utime(self.root / name, (when, when))

    def _drop(self, name: str) -> None:
        held = self._files.pop(name)
        self._in[name.partition("/")[0]].discard(name)
        self._num_bytes -= held.num_bytes
        (self.root / name).unlink(missing_ok=True)
        self._is_saved = False

    # -- what is read

    def prepare(self, name: str, is_synced: bool = False) -> None:
        """Fetch a small file whole, the end of one that grows, and the footer of one that does not change.

        Raises FileNotFoundError if it has vanished or is another one now: other files may have come with that, and have
        to be here first. `is_synced`: they are.
        """
        with self._lock:
            held = self._files.get(name)
        if held is None:
            return
        if held.kind == FIXED:
            if not held.blocks:
                self._fetch_footer(name, held)
            return
        with held.lock:
            if held.have >= held.entry.size or (held.have and held.kind == GROWING and self._fetch_end(name, held)):
                return
            if held.have and not is_synced:
                raise FileNotFoundError(name)
            content, entry = self._place.read(name, 0, WHOLE_BYTES if held.kind == SMALL else GROWING_BYTES), held.entry
        if len(content) != entry.size:
            if held.kind == GROWING and not is_synced:
                raise FileNotFoundError(name)
            entry = Entry(len(content), "", entry.mtime)  # newer than the listing: looked at again with the next one
        with self._lock:
            if self._files.get(name) is held:
                self._make(name, Held(entry, held.kind, have=len(content), used=time.time()), content)
                self._make_room(name)

    def forget(self, name: str) -> None:
        """Leave out a file that has vanished."""
        with self._lock:
            if name in self._files:
                self._drop(name)

    def _fetch_end(self, name: str, held: Held) -> bool:
        """Fetch what a file has grown by; False if it is another file now."""
        first, size = max(0, held.have - OVERLAP_BYTES), held.entry.size
        found = self._place.read(name, first, size)
        descriptor = os.open(self.root / name, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_ino != held.inode:
                return True  # another file has taken its place
            known = os.pread(descriptor, held.have - first, first)
            if len(found) != size - first or found[: len(known)] != known:
                return False
            os.pwrite(descriptor, found[len(known) :], held.have)
        finally:
            os.close(descriptor)
        with self._lock:
            if self._files.get(name) is held:
                self._num_bytes += size - held.have
                held.have, held.used = size, time.time()
                self._stamp(name, held)
                self._is_saved = False
        return True

    def _fetch_footer(self, name: str, held: Held) -> None:
        try:
            descriptor = os.open(self.root / name, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # whoever opens it finds out
        try:
            if os.fstat(descriptor).st_ino == held.inode:
                self._fetch(name, held, descriptor, held.entry.size - 1, held.entry.size)
        finally:
            os.close(descriptor)

    def filled(self, name: str, descriptor: int) -> io.FileIO | None:
        """Return an opened file that fetches what is read; None if it was replaced since `prepare`."""
        with self._lock:
            held = self._files.get(name)
            if held is None:
                return io.FileIO(descriptor, "rb")  # not of the run: a note beside it
            if os.fstat(descriptor).st_ino != held.inode or (held.kind != FIXED and held.have < held.entry.size):
                return None
            held.used = time.time()
            return PartialFile(descriptor, held.entry.size, partial(self._fetch, name, held))

    def _fetch(self, name: str, held: Held, descriptor: int, first: int, end: int) -> None:
        if held.kind != FIXED:
            return
        with held.lock:
            for low, high in held.missing(first, end):
                start, stop = low * BLOCK_BYTES, min((high + 1) * BLOCK_BYTES, held.entry.size)
                found = self._place.read(name, start, stop)
                if len(found) != stop - start:
                    raise RunCorrupt(f"{name}: changed at {self._place.url} while it was read")
                os.pwrite(descriptor, found, start)
                with self._lock:
                    before = held.num_bytes
                    held.blocks.update(range(low, high + 1))
                    held.used = time.time()
                    if self._files.get(name) is held:
                        self._num_bytes += held.num_bytes - before
                        self._stamp(name, held)
                        self._is_saved = False
        with self._lock:
            self._make_room(name)

    def _make_room(self, but: str) -> None:
        """Drop what was used least recently, but this file."""
        if self._num_bytes <= self._limit:
            return
        self._limit = self._own.make_room(self._num_bytes, self._most)
        oldest = sorted((held.used, name) for name, held in self._files.items() if held.num_bytes)
        for _, name in oldest:
            if self._num_bytes <= KEPT_SHARE * self._limit:
                return
            if name != but and _last(name) not in STATUS:
                held = self._files[name]
                self._make(name, Held(held.entry, held.kind, used=held.used))

    # -- from one process to the next

    def save(self) -> None:
        """Write down what is here, for the next process."""
        with self._lock:
            if self._is_saved:
                return
            plain = {"format": FORMAT, "url": self._place.url}
            files = {name: [*held.to_json(), self._changed(name)] for name, held in self._files.items()}
            unfinished = self._own.path / f"{INDEX}.tmp"
            unfinished.write_text(json.dumps({**plain, "files": files}), encoding="utf8")
            os.replace(unfinished, self._own.path / INDEX)
            self._is_saved = True

    def _changed(self, name: str) -> int:
        try:
            return os.lstat(self.root / name).st_mtime_ns
        except OSError:
            return 0

    def _load(self) -> None:
        """A file counts only if it is still the one that was written down; whatever is in doubt is fetched again."""
        try:
            plain = json.loads((self._own.path / INDEX).read_text(encoding="utf8"))
            if plain["format"] != FORMAT or plain["url"] != self._place.url:
                raise ValueError("another place")
            for name, told in plain["files"].items():
                held = Held.from_json(told[:-1])
                found = os.lstat(self.root / name)
                if (found.st_ino, found.st_size, found.st_mtime_ns) == (held.inode, held.entry.size, told[-1]):
                    self._files[name] = held
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            self._files.clear()
        for name in self._files:
            self._in[name.partition("/")[0]].add(name)
        self._num_bytes = sum(held.num_bytes for held in self._files.values())
        for above, folders, names in os.walk(self.root):
            if ".vario" in folders:
                folders.remove(".vario")  # summaries and comparisons: true as long as the runs are the same
            for name in names:
                path = Path(above) / name
                if str(path.relative_to(self.root)) not in self._files:
                    path.unlink(missing_ok=True)
        self._limit = self._own.make_room(self._num_bytes, self._most)


def _last(name: str) -> str:
    return name.rpartition("/")[2]
