"""Monitors of one process that follow one another: a notebook's cell run again, a loop that makes its models anew.

Runs begun by the same line of a program are a group. A model has one Monitor at a time, the latest. A Monitor that is
left open keeps its model in memory: one whose model nobody else refers to any more is closed when the next one starts.
"""

from __future__ import annotations

import os
import sys
import uuid
import weakref
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vario.config import Config
from vario.package import is_own_file

if TYPE_CHECKING:
    from vario.monitor import Monitor

Place = tuple[str, int]
"""A file and a line in it."""

_open: dict[Monitor, Held] = {}
_groups: dict[Place, str] = {}
_names: Counter[tuple[str, str, str]] = Counter()


def new_group() -> str:
    """A name for runs that belong together, unlike any other."""
    return uuid.uuid4().hex[:12]


def group_here() -> str:
    """The group of runs that the calling line of the user's program begins."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_own_file(frame.f_code.co_filename):
        frame = frame.f_back
    return _groups.setdefault((frame.f_code.co_filename, frame.f_lineno), new_group())


def follow_up(config: Config, group: str) -> Config:
    """Close Monitors whose models are gone; the options for the next: a name its group has used gets a number."""
    for monitor in [monitor for monitor, held in _open.items() if monitor.has_trained and held.is_abandoned]:
        monitor.close()
    if config.name is None or config.resume:
        return config
    key = (os.path.abspath(config.directory), config.name, group)
    _names[key] += 1
    return config if _names[key] == 1 else replace(config, name=f"{config.name}-{_names[key]}")


class Held:
    """Models that a Monitor takes hold of, and how often it refers to them itself."""

    def __init__(self, model: Any) -> None:
        models = model.values() if isinstance(model, dict) else model if isinstance(model, (list, tuple)) else [model]
        self._models = [weakref.ref(one) for one in models if hasattr(one, "__weakref__")]
        self._before = 0
        self._own: int | None = None

    def begin(self) -> None:
        """Count what refers to the models before the Monitor does; called from where `settle` will be called."""
        self._before = self._count()

    def settle(self) -> None:
        """The Monitor is made: whatever refers to the models now, and did not before, is its own."""
        self._own = self._count() - self._before

    @property
    def is_abandoned(self) -> bool:
        """Whether only the Monitor refers to them; in doubt not."""
        return self._own is not None and self._count() <= self._own

    def _count(self) -> int:
        return sum(sys.getrefcount(found) - 2 for found in (model() for model in self._models) if found is not None)


def make_room(model: Any) -> Held:
    """Close whatever watches this model, or a part of it, by now, and say so."""
    for monitor in list(_open):
        if monitor.watches(model):
            monitor.close()
            if monitor.is_leading:
                where = "" if monitor.path is None else f" ({monitor.path})"
                sys.stderr.write(f"vario: closed the earlier Monitor of this model{where}; a new one starts\n")
    return Held(model)


def opened(monitor: Monitor, held: Held) -> None:
    """This one watches from now on."""
    held.settle()
    _open[monitor] = held


def closed(monitor: Monitor) -> None:
    """It does no more."""
    _open.pop(monitor, None)
