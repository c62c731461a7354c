"""Make forks wait while a vario thread works.

A forked process gets a copy of every lock in its current state, also of those inside libraries. A lock that a vario
thread has, such as that of Arrow's allocator, would never be released in the child, and the child would hang.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT_SECONDS = 2.0
"""The longest a fork waits."""


class _Threads:
    """Which vario threads are working."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.Lock())
        self.working: set[int] = set()
        self.num_forks_waiting = 0
        self.forking: int | None = None
        """The thread that has the lock of `changed` while it forks."""


_threads = _Threads()
_is_prepared: list[bool] = []


@contextmanager
def at_work() -> Iterator[None]:
    """Make forks in other threads wait for the end of this block; do not nest."""
    _begin()
    try:
        yield
    finally:
        _end()


def let_forks_pass() -> None:
    """Let a waiting fork go first, between two pieces of work inside `at_work`."""
    if _threads.num_forks_waiting and threading.get_ident() in _threads.working:
        _end()
        _begin()


def _begin() -> None:
    with _threads.changed:
        _threads.working.add(threading.get_ident())


def _end() -> None:
    with _threads.changed:
        _threads.working.discard(threading.get_ident())
        _threads.changed.notify_all()


def prepare() -> None:
    """Start to make forks wait. Call it before a thread starts that works.

    A fork that has begun does not see a thread that prepares only now.
    """
    if not _is_prepared:
        _is_prepared.append(True)
        os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


def _before() -> None:
    """Wait for the other threads, and keep them from starting again until the fork is done."""
    here, deadline = threading.get_ident(), time.monotonic() + LIMIT_SECONDS
    if _threads.changed.acquire(timeout=LIMIT_SECONDS):
        _threads.num_forks_waiting += 1
        _threads.changed.wait_for(lambda: _threads.working <= {here}, deadline - time.monotonic())
        _threads.num_forks_waiting -= 1
        _threads.forking = here


def _after_in_parent() -> None:
    if _threads.forking == threading.get_ident():
        _threads.forking = None
        _threads.changed.release()


def _after_in_child() -> None:
    global _threads
    _threads = _Threads()
