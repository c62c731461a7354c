"""Reads files that may be damaged in any way: any failure becomes an error with a message, within a time limit."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from vario.core.errors import RunError, VarioError
from vario.core.text import reason

log = logging.getLogger("vario")

Found = TypeVar("Found")

ANSWER_SECONDS = 60.0
MOST_LATE = 32
"""The most late threads before reading stops."""


def guarded(read: Callable[..., Found], *arguments: Any) -> Found:
    """Return the result of `read`; raises RunError for any exception a damaged file causes."""
    try:
        return read(*arguments)
    except VarioError:
        raise
    except MemoryError as error:
        raise RunError("does not fit into memory. Request fewer steps.") from error
    except Exception as error:
        log.warning("a run cannot be read", exc_info=error)
        raise RunError(f"cannot be read: {reason(error)}") from error


class TooSlow(RunError):
    """A response that took too long."""


class Readers:
    """Threads that read runs: a few at a time, each with a time limit.

    A thread cannot be killed. A late one loses its slot so that others continue, and what it reads is not read again
    until it has ended: a run that cannot be read affects only its own responses.
    """

    def __init__(self, num_readers: int, seconds: float = ANSWER_SECONDS) -> None:
        self._places = anyio.CapacityLimiter(num_readers)
        self._threads = anyio.CapacityLimiter(num_readers + MOST_LATE)
        self._seconds = seconds
        self._late: Counter[str] = Counter()
        self._lock = threading.Lock()

    async def read(self, what: str, read: Callable[..., Found], *arguments: Any) -> Found:
        """Return the result of `read` for a run; raises RunError if it fails or takes too long."""
        with self._lock:
            if self._late[what] or self._late.total() >= MOST_LATE:
                raise TooSlow(f"{what}: an earlier request is still running. Try again later.")
        is_done = is_late = False

        def work() -> Found:
            nonlocal is_done
            try:
                return guarded(read, *arguments)
            finally:
                with self._lock:
                    is_done = True
                    if is_late:
                        self._late -= Counter([what])

        async with self._places:
            # Closing a page does not end a thread either: only the time limit does.
            with anyio.move_on_after(self._seconds, shield=True):
                return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)
        with self._lock:
            if not is_done:
                is_late = True
                self._late[what] += 1
        log.warning("%s: not read in %.0f s", what, self._seconds)
        raise TooSlow(f"{what}: could not be read in {self._seconds:.0f} s. Request less of it.")
