"""Consecutive Monitors of one process: a notebook cell that is run again, a loop that creates new models.

Runs started by the same line, called from the same lines, form a group. A model has one Monitor at a time, the latest.
An open Monitor keeps its model in memory; if nothing else refers to that model any more, the next Monitor closes it.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import uuid
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from vario.config import Config
from vario.core.package import is_own_file
from vario.core.process.collecting import no_collections

if TYPE_CHECKING:
    from vario.training.monitor import Monitor

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")
Place = tuple[tuple[str, int], ...]
"""A place in a program: files and line numbers, from the innermost call outwards."""

_open: dict[Monitor, Held] = {}
_groups: dict[Place, str] = {}
_names: Counter[tuple[str, str, tuple[str, int]]] = Counter()
_beginning = threading.RLock()


def _renew() -> None:
    global _beginning
    _beginning = threading.RLock()  # in a process that was forked while a thread had the lock


os.register_at_fork(after_in_child=_renew)


def one_at_a_time(call: Callable[_Given, _Answer]) -> Callable[_Given, _Answer]:
    """Return the same call, which runs in one thread at a time: starting to watch sets up state the process shares.

    No garbage is collected meanwhile, see `no_collections`.
    """

    @functools.wraps(call)
    def run(*args: _Given.args, **kwargs: _Given.kwargs) -> _Answer:
        with _beginning, no_collections():
            return call(*args, **kwargs)

    return run


def new_group() -> str:
    """Return a unique name for runs that belong together."""
    return uuid.uuid4().hex[:12]


def place_here() -> Place:
    """Return the place in the user's program that calls vario."""
    frame: FrameType | None = sys._getframe(1)
    calls = []
    while frame is not None:
        calls.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(call for call in calls if not is_own_file(call[0]))


def group_of(place: Place) -> str:
    """Return the group of runs started there, by a loop or by a cell that is run again."""
    return _groups.setdefault(place, new_group())


def follow_up(config: Config, place: Place) -> Config:
    """Close Monitors whose models are gone; return the options for the next. A name its line has used gets a number.

    The name stays if that run is gone: its folder was removed, or it was never written.
    """
    for monitor in [monitor for monitor, held in _open.items() if monitor.has_trained and held.is_abandoned]:
        monitor.close()
    if config.name is None or config.resume:
        return config
    key = (os.path.abspath(config.local_directory), config.name, place[0])
    _names[key] += 1
    if _names[key] == 1 or not os.path.exists(os.path.join(key[0], config.name)):
        return config
    return replace(config, name=f"{config.name}-{_names[key]}")


class Held:
    """Models that a Monitor refers to, and how many references are its own."""

    def __init__(self, model: Any) -> None:
        models = model.values() if isinstance(model, dict) else model if isinstance(model, (list, tuple)) else [model]
        self._models = [weakref.ref(one) for one in models if type(one).__weakrefoffset__]
        self._before = 0
        self._own: int | None = None

    def begin(self) -> None:
        """Count references to the models before the Monitor adds its own; call it where `settle` will be called."""
        self._before = self._count()

    def settle(self) -> None:
        """Count the references that the Monitor, now made, has added."""
        self._own = self._count() - self._before

    @property
    def is_abandoned(self) -> bool:
        """Whether only the Monitor refers to the models; False if in doubt."""
        return self._own is not None and bool(self._models) and self._count() <= self._own

    def _count(self) -> int:
        return sum(sys.getrefcount(found) - 2 for found in (model() for model in self._models) if found is not None)


def make_room(model: Any) -> Held:
    """Close whatever already watches this model or a part of it, and print a line about it."""
    for monitor in list(_open):
        if monitor.watches(model):
            monitor.close()
            if monitor.is_leading:
                where = "" if monitor.path is None else f" ({monitor.path})"
                sys.stderr.write(f"vario: closed the earlier Monitor of this model{where} and started a new one\n")
    return Held(model)


def opened(monitor: Monitor, held: Held) -> None:
    """Register an open Monitor."""
    held.settle()
    _open[monitor] = held


def closed(monitor: Monitor) -> None:
    """Unregister a closed Monitor."""
    _open.pop(monitor, None)
