"""What a script prints: its first and its last lines.

The objects `sys.stdout` and `sys.stderr` stay what they are; only their method `write` is another one as long as a run
is open, and it calls the old one first.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

HEAD_CHARACTERS, TAIL_CHARACTERS = 16_384, 49_152
CUT = "\n[...]\n"

_listening: weakref.WeakSet[Printed] = weakref.WeakSet()
_wrapped: list[tuple[Any, Callable[[], None]]] = []
"""Streams with another `write`, and how to undo that."""
_lock = threading.Lock()


class Printed:
    """The first and the last characters that were printed while it listens."""

    def __init__(self) -> None:
        self._head: list[str] = []
        self._head_left = HEAD_CHARACTERS
        self._tail: deque[str] = deque()
        self._tail_size = 0
        self._is_cut = False
        self.num_taken = 0
        """How many pieces it took, to know whether there is anything new."""
        self._process = os.getpid()

    def take(self, text: str) -> None:
        """Keep a piece of text. A progress bar that begins its line anew replaces what stood there."""
        if not text or os.getpid() != self._process:
            return
        self.num_taken += 1
        if text[0] == "\r" and self._tail and "\n" not in self._tail[-1]:
            self._tail_size -= len(self._tail.pop())
        if self._head_left > 0 and not self._tail and text[0] != "\r":
            self._head.append(text[: self._head_left])
            text = text[self._head_left :]
            self._head_left -= len(self._head[-1])
        if not text:
            return
        self._tail.append(text[-TAIL_CHARACTERS:])
        self._tail_size += len(self._tail[-1])
        while self._tail_size > TAIL_CHARACTERS and len(self._tail) > 1:
            self._is_cut = True
            self._tail_size -= len(self._tail.popleft())

    @property
    def text(self) -> str:
        """What was printed, as it stands on a terminal at the end."""
        whole = "".join(self._head) + (CUT if self._is_cut else "") + "".join(tuple(self._tail))
        return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in whole.split("\n"))

    def begin(self) -> None:
        """Start to listen."""
        with _lock:
            _listening.add(self)
            for stream in (sys.stdout, sys.stderr):
                if stream is not None and not any(stream is known for known, _ in _wrapped):
                    _wrapped.append((stream, _listen_to(stream)))

    def end(self) -> None:
        """Stop; the last one leaves the streams as they were."""
        with _lock:
            _listening.discard(self)
            if not _listening:
                for _, undo in _wrapped:
                    undo()
                _wrapped.clear()


def _listen_to(stream: Any) -> Callable[[], None]:
    before = stream.write
    had_own = "write" in getattr(stream, "__dict__", {})

    def write(text: str, /) -> Any:
        written = before(text)
        with contextlib.suppress(Exception):  # printing works, whatever becomes of the copy
            for printed in tuple(_listening):
                printed.take(text)
        return written

    try:
        stream.write = write
    except (AttributeError, TypeError):
        return lambda: None  # such a stream cannot be listened to

    def undo() -> None:
        if stream.__dict__.get("write") is write:  # or else somebody has wrapped it since
            if had_own:
                stream.write = before
            else:
                del stream.write

    return undo
