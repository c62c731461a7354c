"""One quantity's path from a probe into the step in progress: its schedule, its loss scale, its failures."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Protocol

from vario.backends.protocols.observing import LateBins, LateRows, Named, Places, Tensor
from vario.config import Config
from vario.core.elements.bins import COUNTED, QUANTITY
from vario.core.quantities import first_steps
from vario.core.records import Collective, StepId, Table, empty_table
from vario.core.schedule import Schedule
from vario.training.costs import Costs
from vario.training.step_buffer import StepFrames

log = logging.getLogger("vario")


class Observing(Protocol):
    """What an observer needs from its Monitor."""

    config: Config
    frames: StepFrames
    costs: Costs
    off: set[str]

    @property
    def step_number(self) -> int:
        """The step in progress."""

    @property
    def micro_step(self) -> int:
        """The forward and backward pass in progress."""

    def switch_off(self, part: str, error: Exception) -> None:
        """Switch a failed part off and continue without it."""


class QuantityObserver:
    """Records one quantity in the step in progress."""

    def __init__(self, monitor: Observing, quantity: str, scale: Callable[[], Tensor | None] | None) -> None:
        self._monitor = monitor
        self.quantity = quantity
        self._scale = scale
        self._schedule = monitor.config.schedule(quantity)
        self.usual_every = self._schedule.every
        self.is_fixed = monitor.config.fixes(quantity)
        """Whether the user set the interval."""
        self.is_told = -1
        """The interval last written to the run, if any."""
        self.watching = False
        self.is_lent = False
        """Whether this step is recorded only because distributions are."""
        self._idle_from, self._idle_to = 0, 0.0
        """Steps from the first up to, but not including, the second are known to be off the schedule."""
        self._first_steps = 0 if self.is_fixed or self._schedule.count is not None else first_steps(quantity)
        self.watched_before = 0
        """Steps before this one are recorded whatever the schedule says: the first, and those after an incident."""
        self._end_of_first_steps = -1

    @property
    def every(self) -> int:
        """Record one step in this many."""
        return self._schedule.every

    @every.setter
    def every(self, every: int) -> None:
        self._schedule = Schedule(every, self._schedule.start, self._schedule.count)
        self._idle_to = 0.0

    def took(self, seconds: float) -> None:
        """Add the training thread's time spent on this quantity."""
        self._monitor.costs.add(self.quantity, seconds - self._charge_bins())

    def _charge_bins(self) -> float:
        """Charge the time of distributions to them; return it."""
        bins = self._monitor.frames.bins
        spent, bins.seconds = bins.seconds, 0.0
        if spent:
            self._monitor.costs.add(QUANTITY, spent)
        return spent

    def lend(self) -> None:
        """Record this step for its distributions, unless the user set the interval."""
        if not self.watching and not self.is_fixed and self.quantity not in self._monitor.off:
            self.watching = self.is_lent = self.quantity in self._monitor.config.quantities

    def begin_step(self, step: int) -> None:
        """Start a step: decide whether it is recorded."""
        self.is_lent = False
        if self._first_steps:
            self.watched_before = self._end_of_first_steps = max(self._schedule.start, step) + self._first_steps
            self._first_steps = 0
        if step >= self.watched_before and self._idle_from <= step < self._idle_to:
            self.watching = False
            return
        due = self._schedule.next_from(step)
        self._idle_from, self._idle_to = step, math.inf if due is None else due
        is_due = due == step or self._schedule.start <= step < self.watched_before
        self.watching = is_due and self.quantity not in self._monitor.off

    def end_first_steps(self) -> None:
        """Keep to the schedule from now on, although these are the first steps."""
        if self.watched_before == self._end_of_first_steps:
            self.watched_before = 0

    def observe(self, target: str, tensor: Tensor, is_latest: bool = False, may_wait: bool = False) -> int | None:
        """Reduce a tensor and keep its row; never raises."""
        monitor = self._monitor
        try:
            scale = None if self._scale is None else self._scale()
            return monitor.frames.observe(self.quantity, monitor.micro_step, target, tensor, scale, is_latest, may_wait)
        except Exception as error:  # noqa: BLE001 - the failure policy: whatever it is, training continues
            self.failed(error)
            return None

    def is_steady(self, target: str) -> bool:
        """Whether tensors of this target keep their values until the end of their pass."""
        return self._monitor.frames.is_steady((self.quantity, target))

    @property
    def places(self) -> Places:
        """The order of the step's rows, to take places for rows that come later."""
        return self._monitor.frames.places

    def observe_together(self, tensors: list[Tensor], named: Named) -> Sequence[int | None]:
        """Reduce tensors together, each under its targets; return their rows. Never raises."""
        try:
            scale = None if self._scale is None else self._scale()
            return self._monitor.frames.observe_together(self.quantity, tensors, named, scale)
        except Exception as error:  # noqa: BLE001 - the failure policy
            self.failed(error)
            return [None] * len(tensors)

    def failed(self, error: Exception) -> None:
        """Switch this quantity off: its tensors cannot be read."""
        self._monitor.switch_off(self.quantity, error)

    @property
    def step_id(self) -> StepId:
        """The step and micro-step in progress."""
        return self._monitor.step_number, self._monitor.micro_step

    def observe_all(
        self,
        targets: Sequence[str],
        tensors: list[Tensor],
        scale: Tensor | None = None,
        is_wanted: Callable[[float], bool] | None = None,
    ) -> None:
        """Reduce a list at once; the last list of a step counts. For `is_wanted`, see `StepFrames.observe_all`."""
        self._monitor.frames.observe_all(self.quantity, targets, tensors, scale, is_wanted)
        self._charge_bins()

    def observe_at(self, step_id: StepId, target: str, found: list[Tensor] | float) -> None:
        """Reduce tensors of a step into one row, or keep a number as one; safe from any thread."""
        if isinstance(found, list):
            self._monitor.frames.observe_at(self.quantity, step_id, target, found)
            return
        is_zero = float(abs(found) < self._monitor.config.eps or found == 0)
        summary = [1.0, found, found * found, found, found, 0.0, 0.0, is_zero]
        self._monitor.frames.add_summary(self.quantity, step_id, target, summary, ((), "float64"))

    def add_row(self, target: str, row: int, order: int | None = None) -> None:
        """Keep an existing row under another name."""
        self._monitor.frames.add_row(self.quantity, self._monitor.micro_step, target, row, order)

    @property
    def counts_bins(self) -> bool:
        """Whether this step records distributions of this quantity."""
        return self._monitor.frames.bins.counts(self.quantity)

    def add_later(self, rows: LateRows, most: int, bins: LateBins | None = None) -> None:
        """Keep at most `most` rows that are computed when the step is recorded; never raises into the writer."""

        def made() -> tuple[Sequence[str], Table]:
            try:
                return rows()
            except Exception as error:  # noqa: BLE001 - the failure policy
                self.failed(error)
                return (), empty_table(0)

        self._monitor.frames.add_later(self.quantity, made, most, bins)

    def watch_next(self) -> None:
        """Record the next step as well, whatever the schedule says."""
        self.watched_before = max(self.watched_before, self._monitor.step_number + 2)

    def describe(self, collective: Collective) -> None:
        """Describe a collective when it is first seen; safe from any thread."""
        self._monitor.frames.describe(collective)

    def log(self, name: str, value: float) -> None:
        """Log a plain number of this step."""
        self._monitor.frames.log(name, value)

    def log_when(self, fill: Callable[[dict[str, float]], None]) -> None:
        """Let `fill` add plain numbers when the record of this step is built, on the writer thread."""
        self._monitor.frames.log_when(fill)


def begin_all(observers: Sequence[QuantityObserver], step: int) -> list[str]:
    """Start a step for all Observers; return the quantities that it records."""
    for observer in observers:
        observer.begin_step(step)
    if any(observer.watching and observer.quantity == QUANTITY for observer in observers):
        for observer in observers:
            if observer.quantity in COUNTED:
                observer.lend()
    return [observer.quantity for observer in observers if observer.watching]


class Skips:
    """Logs once per quantity that it skips tensors whose values cannot be read."""

    def __init__(self, why: Callable[[Tensor], str]) -> None:
        """`why(tensor)`: the reason, in words."""
        self._why = why
        self._told: set[str] = set()

    def __call__(self, quantity: str, target: str, tensor: Tensor) -> None:
        """Log a skipped tensor, if it is the quantity's first."""
        if quantity not in self._told:
            self._told.add(quantity)
            log.warning(
                "%s of '%s' is not recorded: %s. Further cases are not reported.",
                quantity,
                target,
                self._why(tensor),
            )
