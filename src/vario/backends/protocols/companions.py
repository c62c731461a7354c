"""Models that run beside the watched one and are not trained: teachers, targets, averages, references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Companion(NamedTuple):
    """The state of one such model."""

    number: int
    """Which one; another that takes its place has the same."""
    name: str
    num_active: int
    """Its modules that work in another way in training and are in training mode: dropout, batch norm."""
    was_called: bool
    """Whether it was called since the last look."""
    weights: tuple[float, ...]
    """A few elements; of weights on a device how often they were written instead."""
    distance: float
    """How far these are from the same elements of the watched model, relative to their size; NaN if it has none."""
    is_new: bool
    """Whether it has taken the place of another."""


class Companions(Protocol):
    """The models beside the watched one."""

    def companions(self) -> Sequence[Companion]:
        """Return the state of each model that runs beside the watched one."""

    def search(self) -> None:
        """Find them; the first look does, if nobody did before."""
