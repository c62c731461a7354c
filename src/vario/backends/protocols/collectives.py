"""How a backend reports collective operations to the Monitor."""

from __future__ import annotations

from typing import Any, Protocol

from vario.core.records import Collective


class CallObserver(Protocol):
    """Takes the tensors and the duration of one collective call; from any thread."""

    def observe(self, side: str, tensors: list[Any]) -> None:
        """Take its `input` before the call, or its `output` once that has arrived."""

    def took(self, seconds: float) -> None:
        """Take the seconds from the call to its completion."""


class CollectiveFollower(Protocol):
    """Follows every collective operation of the process; from any thread."""

    @property
    def listening(self) -> bool:
        """Whether it wants calls at the moment."""

    def called(self, call: Collective) -> CallObserver | None:
        """Take a call; return the observer of its tensors, or None. Equal calls are the same object."""

    def failed(self, error: Exception) -> None:
        """Report that following this call failed."""
