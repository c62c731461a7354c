"""A mirror: makes runs that lie elsewhere look like folders of this machine, and keeps up with those that grow."""

from __future__ import annotations

import atexit
import io
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vario.core import run_format
from vario.core.errors import RunError, RunNotFound, Unreachable
from vario.core.masking import masked
from vario.core.run_files import mirrors
from vario.core.text import when
from vario.core.urls import checked_url, last_name
from vario.remote.mirror.cache_folder import OwnFolder, cache_folder, most_bytes
from vario.remote.mirror.held import STATUS
from vario.remote.mirror.local_files import LocalFiles
from vario.remote.places import MOST_NAMES, Entry, Listing, check_count
from vario.remote.places.opening import open_place

log = logging.getLogger("vario")

RANK = re.compile(r"rank(0|[1-9][0-9]{0,6})")
MOST_LEVELS = 5
"""How deep below a folder its runs are looked for."""
LIVE_SECONDS = 2.0
"""A run that is being written is looked at again when it is used and this old."""
OVER_SECONDS = 30.0
"""One that has ended: it may be resumed."""
FOLDER_SECONDS = 15.0
"""The folder: there may be new runs."""
SEEN_SECONDS = 60.0
"""Whoever follows a folder looks at runs that were read within this time."""
FOLLOW_SECONDS = 3.0
SAVE_SECONDS = 60.0
MOST_PAUSE_SECONDS = 60.0
"""After a place could not be reached, the next tries come at growing intervals up to this."""


@dataclass
class _Known:
    """A run, as it was looked at last."""

    top: Listing
    is_over: bool
    looked: float
    seen: float = 0.0


class Mirror:
    """The local copy of a run, or of a folder of runs."""

    def __init__(self, url: str, above: Path, most: int) -> None:
        self.url = url
        self._place = open_place(url)
        self._own = OwnFolder(url, above)
        self.root = self._own.path / "files" / last_name(url)
        self.root.mkdir(parents=True, exist_ok=True)
        self._files = LocalFiles(self._place, self._own, self.root, most)
        self._runs: dict[str, _Known] = {}
        self._looking = threading.Lock()
        self._looked = float("-inf")
        self._saved = time.monotonic()
        self._reached = 0.0
        self._failures = 0
        self._told: set[str] = set()
        self._next_try = 0.0
        self._following: threading.Thread | None = None
        self._closing = threading.Event()
        self._forget = mirrors.register(self)

    @property
    def num_bytes(self) -> int:
        """How many bytes it keeps."""
        return self._files.num_bytes

    @property
    def is_reachable(self) -> bool:
        """Whether the last try succeeded."""
        return self._failures == 0

    def look(self) -> None:
        """Look for runs, and at each; raises Unreachable if that is impossible and nothing was kept."""
        with self._looking:
            now = time.monotonic()
            if now - self._looked >= LIVE_SECONDS and now >= self._next_try:
                self._attempt(self._find_runs)
        if not self._reached and not self._files.folders:
            raise self._error

    def follow(self) -> None:
        """Keep up with runs that are written or looked at, on a thread, so that no reader waits for it."""
        if self._following is None:
            self._following = threading.Thread(target=self._follow, name="vario-mirror", daemon=True)
            self._following.start()

    def close(self) -> None:
        """Write down what is kept, for the next process."""
        self._forget()
        self._closing.set()
        try:
            self._files.save()
        except OSError as error:
            log.warning("%s: what was fetched will be fetched again: %s", self._own.path, error)
        self._place.close()
        self._own.close()

    # -- what `open_file` calls

    def looked_at(self, path: Path) -> None:
        """Bring a run up to date if it is used and was not looked at for a while."""
        run, now = self._run_of(path), time.monotonic()
        known = self._runs.get(run)
        if known is not None:
            known.seen = now
            is_due = self._is_due(known, now)
        else:
            is_due = now - self._looked >= FOLDER_SECONDS and now >= self._next_try
        if self._following is not None or not is_due or not self._looking.acquire(blocking=False):
            return
        try:
            self._attempt_and_tell(self._find_runs if known is None else lambda: self._sync(run))
        finally:
            self._looking.release()

    def prepare(self, path: Path) -> None:
        """Fetch what has to be there before a file is opened."""
        name = self._name(path)
        try:
            self._files.prepare(name)
        except FileNotFoundError:
            # A stream became a part: what has its rows has to be here before it goes.
            run = self._run_of(path)
            with self._looking:
                self._attempt(lambda: self._sync(run))
            try:
                self._files.prepare(name, is_synced=True)
            except FileNotFoundError:
                self._files.forget(name)

    def filled(self, path: Path, descriptor: int) -> io.FileIO | None:
        """Return a file that fetches what is read of it."""
        return self._files.filled(self._name(path), descriptor)

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.root))

    def _run_of(self, path: Path) -> str:
        parts = path.relative_to(self.root).parts
        names = ("/".join(parts[:number]) for number in range(len(parts) + 1))
        return next((name for name in names if name in self._runs), "?")

    def _is_due(self, known: _Known, now: float) -> bool:
        return now >= self._next_try and now - known.looked >= (OVER_SECONDS if known.is_over else LIVE_SECONDS)

    # -- looking

    def _follow(self) -> None:
        while not self._closing.wait(FOLLOW_SECONDS):
            now = time.monotonic()
            with self._looking:
                if now - self._looked >= FOLDER_SECONDS and now >= self._next_try:
                    self._attempt_and_tell(self._find_runs)
                for run, known in list(self._runs.items()):
                    is_wanted = not known.is_over or now - known.seen < SEEN_SECONDS
                    if is_wanted and self._is_due(known, time.monotonic()):
                        self._attempt_and_tell(lambda run=run: self._sync(run))  # type: ignore[misc]
                if now - self._saved >= SAVE_SECONDS:
                    self._saved = now
                    self._attempt_and_tell(self._files.save)

    def _attempt_and_tell(self, action: Callable[[], None]) -> None:
        """The same where nobody waits for the result: any error is logged once."""
        try:
            self._attempt(action)
        except (RunError, OSError) as error:
            if str(error) not in self._told:
                self._told.add(str(error))
                log.warning("%s", error)

    def _attempt(self, action: Callable[[], None]) -> None:
        """Ask the place for something; if it cannot be reached, say so once and go on with what is here."""
        try:
            action()
        except Unreachable as error:
            self._failures += 1
            self._error = error
            self._next_try = time.monotonic() + min(MOST_PAUSE_SECONDS, 2.0**self._failures)
            if self._failures == 1 and (self._reached or self._files.folders):
                since = f"read at {when(self._reached)}" if self._reached else "an earlier command has read"
                log.warning("%s. Showing what was %s.", error, since)
            return
        if self._failures:
            log.warning("%s: can be reached again", masked(self.url))
        self._failures, self._reached = 0, time.time()

    def _find_runs(self) -> None:
        found: dict[str, Listing] = {}
        level, num_seen = [""], 0
        with ThreadPoolExecutor(self._place.num_parallel) as several:
            for _ in range(MOST_LEVELS + 1):
                inner: list[str] = []
                for folder, listing in zip(level, several.map(self._place.listed, level), strict=True):
                    if _is_run(listing):
                        found[folder] = listing
                    else:
                        num_seen += len(listing)
                        check_count(self.url, num_seen, MOST_NAMES)
                        names = (name for name, entry in listing.items() if entry.is_folder and name[0] != ".")
                        inner += [f"{folder}/{name}" if folder else name for name in names]
                level = inner
        if not found and not num_seen:
            raise RunNotFound(f"{masked(self.url)}: no such folder, or nothing in it")
        for run in self._runs.keys() - found.keys():
            del self._runs[run]
            self._files.remove_run(run)
        with ThreadPoolExecutor(self._place.num_parallel) as several:
            list(several.map(self._sync, found.keys(), found.values()))
        for folder in self._files.folders:
            if not any(run in ("", folder) or run.startswith(f"{folder}/") for run in self._runs):
                self._files.remove_run(folder)
        self._looked = time.monotonic()

    def _sync(self, run: str, top: Listing | None = None) -> None:
        """Make the copy of a run as the run is."""
        known = self._runs.get(run)
        top = self._place.listed(run) if top is None else top
        if known is not None and known.is_over and top == known.top:
            known.looked = time.monotonic()
            return
        tree = self._tree(run)
        above = f"{run}/" if run else ""
        changed = [
            name
            for name, entry in tree.items()
            if name.rpartition("/")[2] in STATUS and not _is_same(entry, self._files.entry(above + name))
        ]
        status: dict[str, tuple[Entry, bytes]] = {}
        if changed:
            # What a status says is in the rows that are listed after it was read.
            with ThreadPoolExecutor(self._place.num_parallel) as several:
                contents = several.map(self._read_status, [above + name for name in changed])
                status = {
                    name: (Entry(len(content), tree[name].tag, tree[name].mtime), content)
                    for name, content in zip(changed, contents, strict=True)
                    if content is not None
                }
            tree = self._tree(run)
            tree.update({name: entry for name, (entry, _) in status.items()})
        self._files.apply(run, tree, status)
        seen = 0.0 if known is None else known.seen
        self._runs[run] = _Known(top, self._is_over(run, tree), time.monotonic(), seen)

    def _tree(self, run: str) -> dict[str, Entry]:
        found = self._place.tree(run)
        return {name: entry for name, entry in found.items() if not any(part[0] == "." for part in name.split("/"))}

    def _read_status(self, name: str) -> bytes | None:
        try:
            return self._place.read(name, 0, 1 << 20)
        except FileNotFoundError:
            return None

    def _is_over(self, run: str, tree: Listing) -> bool:
        """Whether a run and all of its ranks say that they have ended."""
        states = []
        for name in tree:
            if name.rpartition("/")[2] in STATUS:
                try:
                    content: Any = json.loads((self.root / run / name).read_bytes())
                    states.append(content.get("state"))
                except (OSError, ValueError, AttributeError):
                    return False
        return "running" not in states and run_format.RUN in tree


def _is_run(listing: Listing) -> bool:
    return run_format.RUN in listing or any(RANK.fullmatch(name) and each.is_folder for name, each in listing.items())


def _is_same(entry: Entry, known: Entry | None) -> bool:
    return known is not None and (entry.size, entry.tag) == (known.size, known.tag)


_mirrors: dict[str, Mirror] = {}
_lock = threading.Lock()


def mirrored(url: str, follow: bool = False) -> Path:
    """Return a folder of this machine that looks like the runs at a URL; raises RunError if there is nothing to show.

    Its files are fetched when they are read. `follow`: keep up with it on a thread.
    """
    url = checked_url(url)
    with _lock:
        mirror = _mirrors.get(url)
        if mirror is None:
            mirror = Mirror(url, cache_folder(), most_bytes())
            _mirrors[url] = mirror
            atexit.register(mirror.close)
    try:
        mirror.look()
    except RunError:
        if not mirror.is_reachable or not os.listdir(mirror.root):
            forget(url)
        raise
    if follow:
        mirror.follow()
    return mirror.root


def forget(url: str) -> None:
    """Close the mirror of a URL; the next `mirrored` begins anew, with what the cache has."""
    with _lock:
        mirror = _mirrors.pop(checked_url(url), None)
    if mirror is not None:
        atexit.unregister(mirror.close)
        mirror.close()
