"""One quantity's way from a probe into the step in progress: its schedule, its loss scale, its failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from vario.backends.base import Tensor
from vario.config import Config
from vario.frames import StepFrames


class Observing(Protocol):
    """What an observer asks of its Monitor."""

    config: Config
    frames: StepFrames
    off: set[str]

    @property
    def micro_step(self) -> int:
        """The forward and backward pass in progress."""

    def switch_off(self, part: str, error: Exception) -> None:
        """A part failed: go on without it."""


class QuantityObserver:
    """One quantity's way into the step in progress."""

    def __init__(self, monitor: Observing, quantity: str, scale: Callable[[], Tensor | None] | None) -> None:
        self._monitor = monitor
        self.quantity = quantity
        self._scale = scale
        self._schedule = monitor.config.schedule(quantity)
        self.watching = False

    def begin_step(self, step: int) -> None:
        """A step begins: see whether it is watched."""
        self.watching = self._schedule.watches(step) and self.quantity not in self._monitor.off

    def observe(self, target: str, tensor: Tensor) -> int | None:
        """Reduce a tensor and keep its row; never raises."""
        try:
            scale = None if self._scale is None else self._scale()
            return self._monitor.frames.observe(self.quantity, self._monitor.micro_step, target, tensor, scale)
        except Exception as error:  # noqa: BLE001 - the failure policy: whatever it is, training goes on
            self.failed(error)
            return None

    def observe_latest(self, target: str, tensor: Tensor) -> None:
        """Reduce a tensor; the last of a step wins."""
        scale = None if self._scale is None else self._scale()
        self._monitor.frames.observe_latest(self.quantity, target, tensor, scale)

    def failed(self, error: Exception) -> None:
        """Say that this quantity's tensors cannot be looked at."""
        self._monitor.switch_off(self.quantity, error)

    def observe_again(self, target: str, row: int) -> None:
        """Keep a row reduced before, under another name."""
        self._monitor.frames.observe_again(self.quantity, self._monitor.micro_step, target, row)

    def observe_all(self, targets: list[str], tensors: list[Tensor], scale: Tensor | None = None) -> None:
        """Reduce a list at once; the last list of a step wins."""
        self._monitor.frames.observe_all(self.quantity, targets, tensors, scale)
