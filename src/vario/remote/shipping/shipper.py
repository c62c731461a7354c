"""Ships one run of this machine to another place until everything is there: `vario ship`, and `directory="s3://..."`."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vario.core import run_format
from vario.core.errors import RunError, RunNotFound, RunTaken, Unreachable, VarioError
from vario.core.masking import masked
from vario.core.process.processes import is_gone
from vario.core.urls import below, is_url
from vario.remote.places.local import Folder
from vario.remote.places.opening import open_place
from vario.remote.shipping.copying import Copier, Outcome
from vario.remote.shipping.identity import check_same_run, read_object
from vario.remote.shipping.pace import Pace, pause_seconds
from vario.remote.shipping.state_file import DONE, FOLDER, GAVE_UP, REFUSED, SHIPPING, UNREACHABLE, StateFile

PASS_SECONDS = 2.0
AGAIN_SECONDS = 0.3
"""The pause after a pass that met a file on its way to become another one."""
MOST_IDLE_PASSES = 5
PAUSE_SHARE = 20
"""The pause after a pass, as a multiple of what it took of the processor: a run may have very many files."""
BEGIN_SECONDS = 60.0
QUIET_SECONDS = 600.0
"""A run of another host that changes nothing for this long is taken to be over."""
GIVE_UP_SECONDS = 3600.0
"""How long to try to reach a place after the run has ended."""
TRY_SECONDS = 60.0
"""The same for somebody who waits for it."""


class Shipper:
    """Ships one run to a folder of runs elsewhere."""

    def __init__(self, run: Path, url: str, rate: int | None = None, own_ranks: bool = False) -> None:
        """`own_ranks`: only the ranks of this host; others ship theirs."""
        self.run = run
        self.target = below(url, run.name) if is_url(url) else str(Path(url) / run.name)
        self._pace = Pace(rate)
        self._own_ranks = own_ranks
        self._source = Folder(run)
        self._copier: Copier | None = None
        self._changed = time.monotonic()
        self.num_bytes = self.num_files = 0

    def follow(self, tell: Callable[[str], None], pass_seconds: float = PASS_SECONDS) -> bool:
        """Ship until the run has ended and everything is there; returns whether it is."""
        return self._until(GIVE_UP_SECONDS, True, tell, pass_seconds)

    def once(self, tell: Callable[[str], None]) -> bool:
        """Ship what is there now; returns whether everything is there."""
        return self._until(TRY_SECONDS, False, tell, 1.0)

    def is_complete(self) -> bool:
        """Whether the target has every file of the run, in its size."""
        place = open_place(self.target)
        there = place.tree("")
        here = self._source.tree("")
        return all(name in there and there[name].size == entry.size for name, entry in here.items() if _counts(name))

    def delete_local(self) -> None:
        """Delete the run here; raises RunError if it has not ended, or is not completely there."""
        outcome = Outcome(status=self._status())
        if not self._is_over(outcome):
            raise RunError(f"{self.run}: not deleted: it has not ended")
        if not self.is_complete():
            raise RunError(f"{self.run}: not deleted: {masked(self.target)} does not have all of it")
        shutil.rmtree(self.run)

    def _until(self, give_up: float, follows: bool, tell: Callable[[str], None], pass_seconds: float) -> bool:
        """Make passes until nothing is left; after errors wait longer and longer."""
        state = StateFile(self.run, masked(self.target))
        num_failures, num_idle, failing_since, is_last = 0, 0, time.monotonic(), not follows
        while True:
            began = time.process_time()
            try:
                outcome = self._pass(is_last)
            except Unreachable as error:
                self._copier = None
                num_failures += 1
                if num_failures == 1:
                    failing_since = time.monotonic()
                    tell(f"{error}. Trying again until it can.")
                state.write(UNREACHABLE, str(error))
                is_over = not follows or self._is_over(Outcome(status=self._status()))
                if is_over and time.monotonic() - failing_since > give_up:
                    state.write(GAVE_UP, str(error))
                    tell(f"gave up. Ship it later with: vario ship {self.run} {masked(self.target).rpartition('/')[0]}")
                    return False
                time.sleep(pause_seconds(num_failures))
                continue
            except VarioError as error:
                state.write(REFUSED, str(error))
                raise
            if num_failures:
                tell(f"{masked(self.target)}: can be reached again")
                num_failures = 0
            is_over = is_last and (not follows or self._is_over(outcome))
            if is_over and not outcome.waiting:
                state.write(DONE if self._is_over(outcome) else SHIPPING)
                return True
            state.write(SHIPPING, None, len(outcome.waiting))
            num_idle = 0 if outcome.num_files or not is_last else num_idle + 1
            if num_idle >= MOST_IDLE_PASSES:
                self._copier, num_idle = None, 0  # somebody has changed the target: look at it anew
            is_last = not follows or self._is_over(outcome)
            if not (is_last and follows):
                pause = AGAIN_SECONDS if outcome.is_held else pass_seconds
                time.sleep(max(pause, PAUSE_SHARE * (time.process_time() - began)))

    def _pass(self, is_last: bool) -> Outcome:
        if self._copier is None:
            target = open_place(self.target)
            check_same_run(self._source, target)
            self._copier = Copier(self._source, target, self._pace, self._takes())
        elif self._own_ranks:
            self._copier.takes = self._takes()
        outcome = self._copier.once(is_last)
        if outcome.num_files:
            self._changed = time.monotonic()
        self.num_bytes += outcome.num_bytes
        self.num_files += outcome.num_files
        return outcome

    def _takes(self) -> Callable[[str], bool]:
        if not self._own_ranks:
            return lambda name: True
        host = socket.gethostname()
        ours = {
            name: (read_object(self._source, f"{name}/{run_format.RANK}") or {}).get("host") in (host, None)
            for name, entry in self._source.listed("").items()
            if entry.is_folder
        }
        leads = (read_object(self._source, run_format.RUN) or {}).get("host") == host

        def takes(name: str) -> bool:
            above, slash, _ = name.partition("/")
            return ours.get(above, False) if slash else name != run_format.RUN or leads

        return takes

    def _status(self) -> dict[str, bytes]:
        found = {}
        for name, entry in self._source.listed("").items():
            with contextlib.suppress(FileNotFoundError):
                if entry.is_folder and name.startswith("rank"):
                    path = f"{name}/{run_format.RANK}"
                    found[path] = self._source.read(path)
        return found

    def _is_over(self, outcome: Outcome) -> bool:
        """Whether all ranks have ended, or their processes are gone."""
        ranks = [_object(content) for name, content in outcome.status.items() if "/" in name]
        if not ranks:
            return not self.run.is_dir() or time.monotonic() - self._changed > QUIET_SECONDS
        return all(_has_ended(rank, time.monotonic() - self._changed) for rank in ranks)


def _object(content: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {"state": "running"}
    return found if isinstance(found, dict) else {}


def _has_ended(rank: Mapping[str, Any], quiet_seconds: float) -> bool:
    if rank.get("state") != "running":
        return True
    gone = is_gone(rank)
    return gone is True or (gone is None and quiet_seconds > QUIET_SECONDS)


def _counts(name: str) -> bool:
    return not any(part.startswith(".") or part.endswith(".tmp") for part in name.split("/"))


def find_runs(folder: Path, wait: bool = False) -> list[Path]:
    """Return the run in a folder, or the runs in it; raises RunNotFound. `wait`: it may be about to begin."""

    def is_run(path: Path) -> bool:
        return (path / run_format.RUN).is_file() or any(path.glob(f"rank*/{run_format.RANK}"))

    limit = time.monotonic() + (BEGIN_SECONDS if wait else 0)
    while not is_run(folder) and not any(map(is_run, folder.glob("*"))) and time.monotonic() < limit:
        time.sleep(0.2)
    if is_run(folder):
        return [folder]
    found = sorted(each for each in folder.iterdir() if is_run(each)) if folder.is_dir() else []
    if not found:
        raise RunNotFound(f"{folder}: not a run, and contains no runs")
    return found


@contextmanager
def only_one(run: Path, target: str, wait: bool) -> Iterator[bool]:
    """Hold a run as the only process of this host that ships it there; False if another one does."""
    folder = run.parent / FOLDER
    try:
        folder.mkdir(exist_ok=True)
        name = hashlib.sha256(f"{socket.gethostname()} {target}".encode()).hexdigest()[:12]
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(folder / f"{run.name}-{name}.lock", flags, 0o666)
    except OSError:
        yield True  # in somebody else's folder: two at a time do the same work twice, and no harm
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        yield False
        return
    else:
        yield True
    finally:
        os.close(lock)


def check_target(run: Path, url: str) -> None:
    """Raise RunTaken if a run would be shipped to where it is."""
    if not is_url(url) and Path(url).resolve() == run.resolve().parent:
        raise RunTaken(f"{run}: is there already")
