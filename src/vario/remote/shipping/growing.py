"""Files that grow at their end, live streams and lists of lines: their new ends where a target can append, else whole
at intervals that grow with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vario.core import run_format
from vario.remote.places import Entry, Place

OVERLAP_BYTES = 4 << 10
"""So much of a file's beginning and end is compared to see that it is the same file."""
PIECE_BYTES = 1 << 20
LEAST_SECONDS = 5.0
BYTES_PER_SECOND = 1 << 20
"""Where files are only replaced: how much to send again and again, at most, for what has grown."""


@dataclass
class _Sent:
    """What is at the target."""

    size: int
    tag: str
    head: bytes
    tail: bytes


class Growing:
    """What of growing files is at a target."""

    def __init__(self, source: Place, target: Place, send_piece: Callable[[int, Callable[[], None]], None]) -> None:
        self._source, self._target, self._send_piece = source, target, send_piece
        self._sent: dict[str, _Sent] = {}
        self._held: set[str] = set()
        self._due_at = float("-inf")

    def is_due(self) -> bool:
        """Whether it is time to send what has grown: always where only the new ends are sent."""
        return self._target.can_append or time.monotonic() >= self._due_at

    def sent_all(self, tree: Mapping[str, Entry]) -> None:
        """Everything has been sent: the larger it is, the later is the next time."""
        again = sum(entry.size for name, entry in tree.items() if name.endswith((run_format.LIVE, ".jsonl")))
        self._due_at = time.monotonic() + LEAST_SECONDS + again / BYTES_PER_SECOND

    def is_sent(self, name: str, entry: Entry) -> bool:
        """Whether a file has not changed since it was sent."""
        sent = self._sent.get(name)
        return sent is not None and (sent.size, sent.tag) == (entry.size, entry.tag)

    def is_held(self, name: str) -> bool:
        """Whether a stream is another one now, but the part that it has become is not there yet."""
        return name in self._held

    def send(self, name: str, entry: Entry, there: dict[str, int]) -> bool:
        """Send what is new; returns whether something was. Raises Unreachable."""
        self._held.discard(name)
        sent = self._sent.get(name)
        try:
            if sent is None and name in there:
                sent = self._sent[name] = self._found(name, there[name])
            if sent is not None and sent.size <= entry.size and self._same_head(name, sent):
                return self._send_end(name, entry, sent, there)
            return self._send_whole(name, entry, sent, there)
        except FileNotFoundError:
            self._held.add(name)  # it has become a part, which the next pass finds
            return False

    def _found(self, name: str, size: int) -> _Sent:
        head = self._target.read(name, 0, min(size, OVERLAP_BYTES))
        return _Sent(size, "", head, self._target.read(name, max(0, size - OVERLAP_BYTES), size))

    def _same_head(self, name: str, sent: _Sent) -> bool:
        return self._source.read(name, 0, len(sent.head)) == sent.head

    def _send_end(self, name: str, entry: Entry, sent: _Sent, there: dict[str, int]) -> bool:
        first = sent.size - len(sent.tail)
        found = self._source.read(name, first, entry.size)
        if len(found) != entry.size - first or found[: len(sent.tail)] != sent.tail:
            return self._send_whole(name, entry, sent, there)
        new = found[len(sent.tail) :]
        if new and not self._target.can_append:
            return self._send_whole(name, entry, sent, there)
        for at in range(0, len(new), PIECE_BYTES):
            piece = new[at : at + PIECE_BYTES]
            self._send_piece(len(piece), lambda at=at, piece=piece: self._target.append(name, sent.size + at, piece))  # type: ignore[misc]
        head = (sent.head + found[len(sent.tail) :])[:OVERLAP_BYTES] if first == 0 else sent.head
        self._sent[name] = _Sent(entry.size, entry.tag, head, found[-OVERLAP_BYTES:])
        there[name] = entry.size
        return bool(new)

    def _send_whole(self, name: str, entry: Entry, sent: _Sent | None, there: dict[str, int]) -> bool:
        content = self._source.read(name, 0, entry.size)
        is_new = sent is not None and content[: len(sent.head)] != sent.head
        if name.endswith(run_format.LIVE) and (is_new or sent is None) and self._lacks_parts(name, there):
            self._held.add(name)
            return False
        self._send_piece(len(content), lambda: self._target.write(name, content))
        self._sent[name] = _Sent(len(content), entry.tag, content[:OVERLAP_BYTES], content[-OVERLAP_BYTES:])
        there[name] = len(content)
        return True

    def _lacks_parts(self, name: str, there: Mapping[str, int]) -> bool:
        """Whether a part of this quantity is not at the target yet: rows of a stream that ended would be missing."""
        folder = name.removesuffix(run_format.LIVE)
        for part in self._source.listed(folder):
            stem = part.rpartition(".")[0]
            if run_format.PART.fullmatch(part) and not any(
                f"{folder}/{stem}.{kind}" in there for kind in ("arrow", "parquet")
            ):
                return True
        return False
