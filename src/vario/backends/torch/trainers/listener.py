"""What one Monitor wants from the trainers of other packages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Listener:
    """What one Monitor wants from trainers."""

    is_ours: Callable[[Iterable[Any]], bool]
    """Whether any of these models is the watched one."""
    report: Callable[[Mapping[str, Any]], None]
    """Takes what a trainer reports, numbers and other values."""
    losses_add_up: Callable[[], None]
    """Called if the trainer makes the losses of a step's passes shares of one."""
    step: Callable[[], int]
    """The number of the step in progress."""
    guarded: Callable[[Callable[..., None]], Callable[..., None]]
    """Returns the same call, which never raises into the trainer."""
