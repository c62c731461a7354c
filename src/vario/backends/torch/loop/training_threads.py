"""Which thread trains a model: several may take turns; if several train at once, the first is followed.

Steps, passes and gradients of two threads that train one model at the same time cannot be separated.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from vario.backends.torch.loop import hooks
from vario.core.errors import ModelError
from vario.core.package import is_own_file
from vario.core.process import script

_SECONDS_OF_SILENCE = 5.0
_SECONDS_OF_GRACE = 0.5

OTHERS = "other threads"
"""Listed as switched off if a second thread trains the same model."""

_LIBRARY = os.path.dirname(threading.__file__) + os.sep
_WAITING = tuple(_LIBRARY + name for name in ("threading.py", "queue.py", "selectors.py", "concurrent", "asyncio"))
_WAITS = frozenset({"wait", "join", "_wait_for_tstate_lock", "get", "select", "result", "_worker"})
"""Functions of these files in which a thread waits for others."""


class Turns:
    """Remembers the thread whose turn it is, for one Monitor."""

    def __init__(self) -> None:
        self._owner: int | None = None
        self._of_autograd: set[int] = set()
        """Threads on which torch runs backward, one per device; they are permanent."""
        self._met: set[int] = set()
        """Other threads that have used the model."""
        self._num_signs = 0
        self._passed_over = -1, 0.0
        """The owner's activity count when another thread was first ignored since, and the time."""
        self._has_told = False

    def takes_part(self) -> bool:
        """Whether events on this thread belong to the followed training; this may make it the thread's turn."""
        here = threading.get_ident()
        if here == self._owner:
            self._num_signs += 1
            return True
        if here in self._of_autograd:
            return True
        if hooks.current_backward() != -1 and isinstance(threading.current_thread(), threading._DummyThread):
            self._of_autograd.add(here)
            return True
        if self._owner is not None and self._keeps_the_turn(self._owner, here):
            return False
        self._owner = here
        return True

    def _keeps_the_turn(self, owner: int, other: int) -> bool:
        if not _is_at_work(owner):
            return False
        if other not in self._met:
            # Once: the owner may be about to wait for this thread, which it has just started.
            self._met.add(other)
            end = time.monotonic() + _SECONDS_OF_GRACE
            while time.monotonic() < end:
                time.sleep(0.001)
                if not _is_at_work(owner):
                    return False
        return not self._has_long_been_silent()

    def _has_long_been_silent(self) -> bool:
        """Whether the owner has not used the model for some time in which others would have."""
        num_signs, since = self._passed_over
        if num_signs != self._num_signs:
            self._passed_over = self._num_signs, time.monotonic()
            return False
        return time.monotonic() - since > _SECONDS_OF_SILENCE

    def is_elsewhere(self) -> bool:
        """Whether another thread has the turn; asking changes nothing."""
        return self._owner not in (None, threading.get_ident())

    def is_busy_elsewhere(self) -> bool:
        """Whether another thread has the turn and is still running the program."""
        if self._owner is None or not self.is_elsewhere():
            return False
        return _program_in(sys._current_frames().get(self._owner)) is not None

    def only(
        self, call: Callable[..., None], switch_off: Callable[[str, Exception], None] | None = None
    ) -> Callable[..., None]:
        """Return the same call, which does nothing on other threads; with `switch_off` it reports that once."""

        def run(*args: Any) -> None:
            if self.takes_part():
                call(*args)
            elif switch_off is not None and not self._has_told:
                self._has_told = True
                name = threading.current_thread().name
                text = f"thread '{name}' calls this model while another thread trains it: only the latter is recorded"
                switch_off(OTHERS, ModelError(f"{text}. Call `vario.watch` for each thread's model"))

        return run


def _program_in(innermost: FrameType | None) -> FrameType | None:
    """Return the innermost function of a stack outside the standard library; none in a thread that waits for work."""
    frame = innermost
    while frame is not None and _is_of_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_of_library(file: str) -> bool:
    # Without a virtual environment, packages are inside the folder of the standard library.
    return file.startswith(_LIBRARY) and "-packages" not in file


def _is_at_work(thread: int) -> bool:
    """Whether a thread runs code of the program, rather than waiting for another one or for work."""
    innermost = sys._current_frames().get(thread)
    program = _program_in(innermost)
    if innermost is None or program is None:
        return False
    file = program.f_code.co_filename
    if is_own_file(file):
        return file != script.__file__  # a hook of ours, unless the script has ended and its threads continue
    code = innermost.f_code
    is_waiting = code.co_name in _WAITS and code.co_filename.startswith(_WAITING)
    return not is_waiting or _is_starting_a_thread(innermost)


def _is_starting_a_thread(innermost: FrameType) -> bool:
    """Whether a thread waits only for another one to start, as `Thread.start` does."""
    frame: FrameType | None = innermost
    while frame is not None and frame.f_code is not threading.Thread.start.__code__:
        frame = frame.f_back
    return frame is not None


def within_reach() -> set[int]:
    """Return the ids of what this thread's local variables refer to, directly or one level down."""
    frame: FrameType | None = sys._getframe(1)
    found: set[int] = set()
    while frame is not None:
        for value in [] if is_own_file(frame.f_code.co_filename) else list(frame.f_locals.values()):
            found.add(id(value))
            found.update(map(id, _parts_of(value)))
        frame = frame.f_back
    return found


def _parts_of(value: Any) -> list[Any]:
    if type(value) in (list, tuple):
        return list(value)
    try:
        return list((value if type(value) is dict else vars(value)).values())
    except Exception:  # noqa: BLE001 - a foreign object, which may raise anything when it is read
        return []
