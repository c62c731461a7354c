"""Forked processes drop the Monitors of their parent; a fork waits until the parent's vario threads are idle."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from types import FrameType
from typing import Protocol

LIMIT_SECONDS = 2.0
"""How long a fork waits for a vario thread."""


class Leavable(Protocol):
    """What a forked process has to drop."""

    def let_go(self) -> None:
        """Drop all state without a trace: the parent watches and writes."""


_held: weakref.WeakSet[Leavable] = weakref.WeakSet()
_is_prepared: list[bool] = []


def let_go_in_forks(one: Leavable) -> None:
    """Drop it in every process that is forked from now on."""
    if not _is_prepared:
        os.register_at_fork(before=_calm, after_in_child=_forked)
        _is_prepared.append(True)
    _held.add(one)


def _forked() -> None:
    for one in list(_held):
        one.let_go()
    _held.clear()


def _calm() -> None:
    """Wait until no vario thread imports a module: in a child, a thread that does not exist would hold the lock."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while _held and any(map(_imports, _frames_of_ours())) and time.monotonic() < deadline:
        time.sleep(0.001)


def _frames_of_ours() -> list[FrameType]:
    here = threading.get_ident()
    ours = {one.ident for one in threading.enumerate() if one.name.startswith("vario-") and one.ident != here}
    return [frame for ident, frame in sys._current_frames().items() if ident in ours]


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
