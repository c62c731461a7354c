"""What the Monitor asks of a framework about collective operations."""

from __future__ import annotations

from typing import Any, Protocol

from vario.core.records import Collective


class CallObserver(Protocol):
    """Takes what one call of a collective shows; from any thread."""

    def observe(self, side: str, tensors: list[Any]) -> None:
        """Take its `input` before it, or its `output` when that has come."""

    def took(self, seconds: float) -> None:
        """It is complete, so long after it was called."""


class CollectiveFollower(Protocol):
    """Is told of every collective operation of the process; from any thread."""

    @property
    def listening(self) -> bool:
        """Whether it wants to know of calls at this time."""

    def called(self, call: Collective) -> CallObserver | None:
        """One is called; what takes its tensors, None where they are not wanted. Calls alike give the same object."""

    def failed(self, error: Exception) -> None:
        """Following this call has failed."""
