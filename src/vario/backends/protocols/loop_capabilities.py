"""What a backend may offer about the training loop around its model; the others are in `capabilities`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from vario.backends.protocols.observing import BatchSize


class TrainerReports(Protocol):
    """What trainers of other packages report for this model."""

    def on_reported(self, call: Callable[[Mapping[str, Any]], None]) -> None:
        """Call `call` with the names and values that such a trainer reports."""


class TrainerPasses(Protocol):
    """Passes of a trainer that does not call the outermost module."""

    def pass_began(self) -> None:
        """Note that a training pass begins."""

    def pass_ended(self) -> None:
        """Note that the pass, its backward and maybe an update are done."""


class LoopTimes(Protocol):
    """What a loop does besides training passes and updates."""

    def on_timed(self, call: Callable[[str, float, float], None]) -> None:
        """Call `call` with what it was (`loader`, `evaluation`, `checkpoint`) and its two ends, by `perf_counter`.

        A `loader` prepares or waits for a batch, a pass without gradients is an `evaluation`.
        """

    def on_workers(self, call: Callable[[int], None]) -> None:
        """Call `call` with the number of worker processes of the loader of each batch."""


class PassWork(Protocol):
    """How much work a training pass is."""

    def batch_size(self, inputs: Any) -> BatchSize | None:
        """Return how many rows and tokens a batch has; None if it has no tensors with rows."""

    def begin_count(self) -> bool:
        """Start counting the operations of a pass, if that cannot disturb it; return whether it does."""

    def end_count(self) -> None:
        """Stop counting, until the next pass."""

    def counted(self) -> Mapping[str, tuple[float, float | None]]:
        """Return by precision the operations of all counted passes, and how many a second the device can do."""
