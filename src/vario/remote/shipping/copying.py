"""Makes one run folder like another, in an order in which a reader always sees a whole run.

Nothing is remembered from one process to the next: what is there already says what is left to do. So a copy that was
killed at any moment goes on where it was.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from vario.core import run_format
from vario.remote.places import Entry, Place, is_safe
from vario.remote.shipping.growing import Growing
from vario.remote.shipping.pace import Pace

CHUNK_BYTES = 1 << 20
"""A larger file is sent in such pieces where that can be continued after a break."""
STATUS = (run_format.RANK, run_format.RUN)
"""Written last, in this order; what they say is in the rows that are there by then."""
STATUS_SECONDS = 5.0
"""A closed part is about to be rewritten, and waits for that unless the status at the target gets older than this."""

_AGREED = re.compile(r"(job|session-\d+)\.json")
"""What all ranks of a job agreed on: the first to send it counts."""
_TRANSIENT = re.compile(r"rank\d+/(writer-\d+-\d+\.json|[^/]+\.live\.arrow|outlines/.+\.parquet|(?:.+/)?\.[^/]+)")
"""What a run deletes itself, and what a broken copy leaves."""


@dataclass
class Outcome:
    """What one pass came to."""

    num_bytes: int = 0
    """Bytes sent."""
    num_files: int = 0
    waiting: set[str] = field(default_factory=set)
    """Names of what is not there yet."""
    is_held: bool = False
    """Whether a part is just becoming another file: look again soon."""
    status: dict[str, bytes] = field(default_factory=dict)
    """The status files as they were before the pass."""


class Copier:
    """Copies a run, again and again while it is written. After an error begin with a new one."""

    def __init__(
        self, source: Place, target: Place, pace: Pace, takes: Callable[[str], bool] = lambda name: True
    ) -> None:
        """`takes` chooses files by name."""
        self._source, self._target, self._pace, self.takes = source, target, pace, takes
        self._there: dict[str, int] | None = None
        """Sizes of the files at the target."""
        self._tags: dict[str, str] = {}
        """By file: the tag of what was sent."""
        self._status: dict[str, bytes] = {}
        self._growing = Growing(source, target, self._send_piece)
        self._told = float("-inf")
        """When the status was sent last."""
        self._outcome = Outcome()

    def once(self, is_last: bool = False) -> Outcome:
        """Send everything that is new. `is_last`: nothing will change any more, so nothing waits for a better moment.

        Raises Unreachable if source or target cannot be reached.
        """
        outcome = self._outcome = Outcome()
        if self._there is None:
            self._there = {name: entry.size for name, entry in self._target.tree("").items()}
        outcome.status = self._read_status()
        tree = {name: entry for name, entry in self._source.tree("").items() if self._is_ours(name)}
        held = self._send_closed(tree, is_last)
        outcome.is_held = bool(held)
        is_due = is_last or self._growing.is_due()
        for name, entry in tree.items():
            if not _grows(name) or self._growing.is_sent(name, entry):
                continue
            if not is_due or name.removesuffix(run_format.LIVE) in held:
                outcome.waiting.add(name)
            elif self._growing.send(name, entry, self._there):
                outcome.num_files += 1
            elif self._growing.is_held(name):
                outcome.waiting.add(name)
        if not outcome.waiting:
            self._send_status(outcome.status)
            self._told = time.monotonic()
            self._clear(tree)
            if is_due:
                self._growing.sent_all(tree)
        return outcome

    def _is_ours(self, name: str) -> bool:
        parts = name.split("/")
        is_hidden = any(part.startswith(".") or part.endswith(".tmp") for part in parts)
        return is_safe(name) and not is_hidden and self.takes(name) and parts[-1] not in STATUS

    def _read_status(self) -> dict[str, bytes]:
        found = {}
        for name, entry in self._source.listed("").items():
            path = f"{name}/{run_format.RANK}" if entry.is_folder else name
            if (entry.is_folder or name in STATUS) and self.takes(path) and is_safe(path):
                try:
                    found[path] = self._source.read(path)
                except FileNotFoundError:
                    continue
        return found

    def _send_closed(self, tree: Mapping[str, Entry], is_last: bool) -> set[str]:
        """Send what does not grow; return the quantities (`rank0/gradient`) whose parts have to wait."""
        held = set()
        may_wait = not is_last and time.monotonic() - self._told < STATUS_SECONDS
        for name, entry in tree.items():
            if _grows(name):
                continue
            if name.endswith(".arrow") and may_wait and not self._is_there(name, entry):
                held.add(name.rpartition("/")[0])
                self._outcome.waiting.add(name)
                continue
            try:
                self._send(name, entry)
            except FileNotFoundError:
                self._outcome.waiting.add(name)  # it has become part of another file, which the next pass finds
                held.add(name.rpartition("/")[0])
        return held

    def _send(self, name: str, entry: Entry) -> None:
        assert self._there is not None
        if self._is_there(name, entry) or (_AGREED.fullmatch(name) and name in self._there):
            return
        if _is_fixed(name):
            self._send_large(name, entry)
        else:
            content = self._source.read(name)
            if self._there.get(name) != len(content) or self._content_there(name) != content:
                self._send_piece(len(content), lambda: self._target.write(name, content))
                self._outcome.num_files += 1
            self._there[name] = len(content)
        self._tags[name] = entry.tag

    def _is_there(self, name: str, entry: Entry) -> bool:
        assert self._there is not None
        if _is_fixed(name):
            return self._there.get(name) == entry.size
        return self._tags.get(name) == entry.tag

    def _send_large(self, name: str, entry: Entry) -> None:
        """Send a file that does not change any more: whole, or in pieces of which those that are there stay there."""
        assert self._there is not None
        if not self._target.can_append or entry.size <= CHUNK_BYTES:
            content = self._source.read(name)
            self._send_piece(len(content), lambda: self._target.write(name, content))
        else:
            folder, _, last = name.rpartition("/")
            unfinished = f"{folder}/.{last}.part"
            at = self._there.get(unfinished, 0)
            at = at if at <= entry.size else 0
            while at < entry.size:
                piece = self._source.read(name, at, min(at + CHUNK_BYTES, entry.size))
                if not piece:
                    raise FileNotFoundError(name)
                self._send_piece(len(piece), lambda at=at, piece=piece: self._target.append(unfinished, at, piece))  # type: ignore[misc]
                at += len(piece)
                self._there[unfinished] = at
            self._target.rename(unfinished, name)
            self._there.pop(unfinished, None)
        self._there[name] = entry.size
        self._outcome.num_files += 1

    def _send_piece(self, num_bytes: int, send: Callable[[], None]) -> None:
        self._pace.wait(num_bytes)
        send()
        self._outcome.num_bytes += num_bytes

    def _send_status(self, contents: Mapping[str, bytes]) -> None:
        assert self._there is not None
        for name in sorted(contents, key=lambda name: STATUS.index(name.rpartition("/")[2])):
            content = contents[name]
            if name not in self._status and self._there.get(name) == len(content):
                self._status[name] = self._content_there(name)
            if self._status.get(name) != content:
                self._send_piece(len(content), lambda: self._target.write(name, content))  # noqa: B023 - called at once
                self._status[name] = content
                self._there[name] = len(content)
                self._outcome.num_files += 1

    def _content_there(self, name: str) -> bytes:
        try:
            return self._target.read(name)
        except FileNotFoundError:
            return b""  # somebody has deleted it

    def _clear(self, tree: Mapping[str, Entry]) -> None:
        """Delete at the target what the run itself has deleted, in the folders of these ranks."""
        assert self._there is not None
        folders = {name.partition("/")[0] for name in tree if "/" in name}
        old = self._replaced()
        for name in [name for name in self._there if name not in tree]:
            is_ours = name.partition("/")[0] in folders and self.takes(name)
            if is_ours and (name in old or _TRANSIENT.fullmatch(name)):
                self._target.remove(name)
                del self._there[name]

    def _replaced(self) -> set[str]:
        """The parts at the target whose rows are there in another file as well."""
        parts: dict[str, list[str]] = {}
        for name in self._there or ():
            folder, _, last = name.rpartition("/")
            if run_format.part_range(last) is not None:
                parts.setdefault(folder, []).append(last)
        old: set[str] = set()
        for folder, names in parts.items():
            current = {name for *_, name in run_format.current_parts(names)}
            old |= {f"{folder}/{name}" for name in names if name not in current}
        return old


def _grows(name: str) -> bool:
    return name.endswith((run_format.LIVE, ".jsonl"))


def _is_fixed(name: str) -> bool:
    """Whether a file never changes once it has its name."""
    return name.endswith((".parquet", ".arrow", ".npz", ".png")) and not name.endswith(run_format.RULE_MEMORY)
