"""Monitors of one process that follow one another: a notebook's cell run again, a loop that makes its models anew.

Runs begun by the same line of a program are a group. A Monitor that is left open would keep its model in memory, so
the next one of its group closes it once it has trained; and a model has one Monitor at a time, the latest.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vario.config import Config
from vario.package import is_own_file

if TYPE_CHECKING:
    from vario.monitor import Monitor

Place = tuple[str, int]
"""A file and a line in it."""

_open: list[Monitor] = []
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


def follow_up(model: Any, config: Config, group: str) -> Config:
    """Close the Monitor before in this group; the options for the next: a name that was used gets a number."""
    trained = [monitor for monitor in _open if monitor.group == group and monitor.has_trained]
    trained = [monitor for monitor in trained if not monitor.watches(model)]  # `make_room` speaks of those
    # Several at once are models that train side by side: nobody knows which of them is done.
    if len(trained) == 1:
        trained[0].close()
    if config.name is None or config.resume:
        return config
    key = (os.path.abspath(config.directory), config.name, group)
    _names[key] += 1
    return config if _names[key] == 1 else replace(config, name=f"{config.name}-{_names[key]}")


def make_room(model: Any) -> None:
    """Close whatever watches this model, or a part of it, by now, and say so."""
    for monitor in [one for one in _open if one.watches(model)]:
        monitor.close()
        if monitor.is_leading:
            where = "" if monitor.path is None else f" ({monitor.path})"
            sys.stderr.write(f"vario: closed the earlier Monitor of this model{where}; a new one starts\n")


def opened(monitor: Monitor) -> None:
    """This one watches from now on."""
    _open.append(monitor)


def closed(monitor: Monitor) -> None:
    """It does no more."""
    if monitor in _open:
        _open.remove(monitor)
