"""One quantity's way from a probe into the step in progress: its schedule, its loss scale, its failures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from vario.backends.base import LateRows, Tensor
from vario.config import Config
from vario.core.records import Collective, StepId, Table, empty_table
from vario.training.step_buffer import StepFrames

log = logging.getLogger("vario")


class Observing(Protocol):
    """What an observer asks of its Monitor."""

    config: Config
    frames: StepFrames
    off: set[str]

    @property
    def step_number(self) -> int:
        """The step in progress."""

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
        self.watched_before = 0
        """Steps before this one are watched whatever the schedule says: an incident asks for it."""

    def begin_step(self, step: int) -> None:
        """A step begins: see whether it is watched."""
        is_due = self._schedule.watches(step) or step < self.watched_before
        self.watching = is_due and self.quantity not in self._monitor.off

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

    @property
    def step_id(self) -> StepId:
        """The step and micro-step in progress."""
        return self._monitor.step_number, self._monitor.micro_step

    def observe_at(self, step_id: StepId, target: str, tensors: list[Tensor]) -> None:
        """Reduce tensors that belong to a step into one row; from any thread."""
        self._monitor.frames.observe_at(self.quantity, step_id, target, tensors)

    def keep(self, step_id: StepId, target: str, number: float) -> None:
        """Keep a plain number as a row of one element; from any thread."""
        is_zero = float(abs(number) < self._monitor.config.eps or number == 0)
        summary = [1.0, number, number * number, number, number, 0.0, 0.0, is_zero]
        self._monitor.frames.keep(self.quantity, step_id, target, summary, ((), "float64"))

    def describe(self, collective: Collective) -> None:
        """Say what a collective is, when it is seen for the first time; from any thread."""
        self._monitor.frames.describe(collective)

    def observe_all(self, targets: list[str], tensors: list[Tensor], scale: Tensor | None = None) -> None:
        """Reduce a list at once; the last list of a step wins."""
        self._monitor.frames.observe_all(self.quantity, targets, tensors, scale)

    def observe_later(self, rows: LateRows, most: int) -> None:
        """Keep at most so many rows that are made when the step is recorded; never raises into the writer."""

        def made() -> tuple[Sequence[str], Table]:
            try:
                return rows()
            except Exception as error:  # noqa: BLE001 - the failure policy
                self.failed(error)
                return (), empty_table(0)

        self._monitor.frames.observe_later(self.quantity, made, most)


class Skips:
    """Says, once for each quantity, that it passes over tensors which hold no numbers."""

    def __init__(self, why: Callable[[Tensor], str]) -> None:
        """`why(tensor)`: why it has no numbers, in words."""
        self._why = why
        self._told: set[str] = set()

    def __call__(self, quantity: str, target: str, tensor: Tensor) -> None:
        """A tensor was passed over."""
        if quantity not in self._told:
            self._told.add(quantity)
            log.warning(
                "%s of '%s' is not recorded: %s. Others like it are passed over silently.",
                quantity,
                target,
                self._why(tensor),
            )
