"""Letting go of Monitors in processes that are forked from the one they watch in."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Leavable(Protocol):
    """What has to be let go of in a forked process."""

    def let_go(self) -> None:
        """Forget the training without a trace: the parent watches it, and writes."""


_held: weakref.WeakSet[Leavable] = weakref.WeakSet()
_is_prepared: list[bool] = []


def let_go_in_forks(one: Leavable) -> None:
    """Let go of it in every process that is forked from now on."""
    if not _is_prepared:
        os.register_at_fork(after_in_child=_forked)
        _is_prepared.append(True)
    _held.add(one)


def _forked() -> None:
    for one in list(_held):
        one.let_go()
    _held.clear()
