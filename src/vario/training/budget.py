"""The overhead budget: measures what vario costs per step, and samples expensive quantities less often.

Costs are seconds of the training thread and of the writer per part, and estimated seconds of the device. A quantity
with an interval set by the user keeps it. Intervals only double, so the steps of a longer interval are a subset of
those of a shorter one.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from vario.backends.protocols.backend import Backend
from vario.backends.protocols.capabilities import DeviceClock
from vario.config import Config
from vario.core.clock import Clock
from vario.core.elements.bins import QUANTITY
from vario.core.records import StepRecord
from vario.sinks.alerts import Alerts
from vario.statistics import columns_needed
from vario.store.intervals import RankIntervals
from vario.training.costs import SPARSE, Costs
from vario.training.observer import QuantityObserver
from vario.training.step_buffer import StepFrames
from vario.training.tripwire import GRADIENT, Tripwire

FIRST_DECISION = 2
"""Steps before intervals are chosen for the first time; the next decisions are after 4, 8, 16, 32 and 64 steps."""
LATER_DECISIONS = 64
"""Steps between later decisions; they are also at least `DECISION_SECONDS` apart."""
DECISION_SECONDS = 0.25
LEAST_SECONDS = 1e-4
"""A step may always cost this much, however short it is: 100 microseconds are a few hundred Python calls."""
LEAST_WITHOUT_TRAINING = 2e-5
"""The same in a loop that only logs numbers: looking at weights that nothing changes is worth less."""
MOST_FOR_FIRST = 5e-3
"""A look in one of the first steps may cost this much in any case: there are only a dozen of them."""
LEAST_FOR_LOOKS = 0.5
"""If the fixed cost per step uses up the budget, quantities may still cost half of it. Paying for steps that record
next to nothing would be worse."""
MOST_FOR_SPARSE = 0.25
"""Share of the budget that sparse parts may use."""
MOST_SPARSE_EVERY = 32
MOST_EVERY = 160
"""The longest interval."""
MOST_BETWEEN_DISTRIBUTIONS = 1600
"""The same for distributions: no rule waits for them, and one costs as much as a look at everything."""
YIELDS = 4
"""How much smaller a share of the budget distributions get than any other quantity."""
LEAST_SAVED = 0.02
"""Quantities that use less than this share of the budget keep their interval."""
UNCERTAIN_FACTOR = 4
"""How far an interval may grow after a single sample, which may include compiling kernels."""
LIGHT_ROWS = 50
"""Cost of a step without tensors for the writer, in rows."""
SLACK = 0.6
"""Shorten an interval again if this share of the budget is enough."""
FIRST_BEHIND, BEHIND_EVERY = 32, 8
"""Whether the device is behind is asked in each of the first steps, and then in one step of so many."""
BEHIND = 0.8
"""Host time is free if the device is still busy with the previous step at the end of at least this share of steps."""


@dataclass
class _Looks:
    """Recent costs of single samples of a quantity, in seconds."""

    host: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    writer: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    device: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    num: int = 0

    def add(self, host: float, device: float) -> None:
        self.num += 1
        if self.num == 2:
            # The first sample compiled kernels, built plans and reserved memory.
            self.host.clear()
            self.device.clear()
            self.writer.clear()
        self.host.append(host)
        self.device.append(device)

    def cost(self, host_counts: bool) -> float:
        host = _median(self.host) + _median(self.writer) if host_counts else 0.0
        return max(host, _median(self.device))


class Budgeted(Protocol):
    """What a budget needs from its Monitor."""

    costs: Costs
    frames: StepFrames
    alerts: Alerts | None
    path: Path | None

    def observer(self, quantity: str) -> QuantityObserver:
        """Return the Observer of a quantity."""

    def guarded(self, part: str, call: Callable[..., None]) -> Callable[..., None]:
        """Return the same call, which switches the part off instead of raising."""

    def on_step_ended(self, call: Callable[[float], None]) -> None:
        """Call `call` with the seconds since the previous step, when the step's updates are complete."""


class Loop(Protocol):
    """What a budget needs from the backend that follows the training loop."""

    clock: Clock

    @property
    def is_light(self) -> bool:
        """Whether the step in progress is a light one."""

    @property
    def is_regular(self) -> bool:
        """Whether the loop does the same in every step, so that some may be light."""


def keep_within(
    config: Config, monitor: Budgeted, backend: Backend, observers: Sequence[QuantityObserver]
) -> Budget | None:
    """Keep the cost of a Monitor within the budget of its config; return None if there is no budget."""
    if not isinstance(config.overhead, float):
        return None
    ranks = None
    if backend.world_size > 1 and monitor.path is not None:
        ranks = RankIntervals(monitor.path, backend.rank, min(config.ranks, default=0))
    device = backend.offer(DeviceClock)
    is_behind = (lambda: False) if device is None else device.is_behind
    budget = Budget(config.overhead, observers, monitor.costs, monitor.frames, is_behind, backend, ranks)
    monitor.on_step_ended(monitor.guarded("overhead", budget.step_ended))
    is_free = GRADIENT in config.quantities and not config.fixes(GRADIENT)
    if is_free and "sum_squares" in columns_needed(config.statistics):
        tripwire = Tripwire(observers, backend, monitor.costs)
        tripwire.attach(monitor.observer(GRADIENT), monitor.guarded)
        monitor.frames.keeps_norm = True
        if monitor.alerts is not None:
            monitor.alerts.on_incident(tripwire.incident_came)
    return budget


class Budget:
    """Chooses the intervals of one rank's quantities so that the cost stays below a share of the step time."""

    def __init__(
        self,
        share: float,
        observers: Sequence[QuantityObserver],
        costs: Costs,
        frames: StepFrames,
        is_behind: Callable[[], bool],
        loop: Loop,
        ranks: RankIntervals | None = None,
    ) -> None:
        """`is_behind()`: whether the device still works on the previous step, so that host time costs nothing.

        `ranks`: how the ranks of a job with several agree.
        """
        self.share = share
        self._observers = observers
        self._costs = costs
        self._frames = frames
        self._is_behind = is_behind
        self._loop = loop
        self._ranks = ranks
        self._looks: defaultdict[str, _Looks] = defaultdict(_Looks)
        self._floor: deque[float] = deque(maxlen=32)
        self._light_floor: deque[float] = deque(maxlen=32)
        self._was_sparse = self._was_regular = False
        self._saved = 0.0
        """What a light step saves, beside what it does not record."""
        self._sparse: deque[float] = deque(maxlen=8)
        self._writer_floor: deque[float] = deque(maxlen=32)
        self._steps: deque[float] = deque(maxlen=32)
        self._behind: deque[bool] = deque(maxlen=32)
        self._num_steps = 0
        self._has_trained = False
        self._until_decision = FIRST_DECISION
        self._since_decision = 0.0
        self._window = self._host = self._device = self._writer = 0.0

    def step_ended(self, seconds: float) -> None:
        """Record the cost of a step that took this long, and choose intervals if it is time to."""
        self._count(seconds, self._costs.take(), self._frames.take_device_seconds())
        self._until_decision -= 1
        self._since_decision += seconds
        is_early = self._num_steps > FIRST_DECISION and self._since_decision < DECISION_SECONDS
        has_become_regular = self._loop.is_regular and not self._was_regular
        if (self._until_decision <= 0 and not is_early) or has_become_regular:
            self._was_regular = self._loop.is_regular
            self._until_decision = min(self._num_steps, LATER_DECISIONS)
            self._since_decision = 0.0
            self._log(self._decide())
        if self._ranks is not None and (chosen := self._ranks.due(self._loop.clock.step + 1)) is not None:
            self._log(self._apply(chosen))

    def _log(self, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._frames.log(name, value)

    def _count(self, seconds: float, spent: Mapping[str, float], device: Mapping[str, float]) -> None:
        looks = 0.0
        # What is recorded only for distributions is part of what these cost.
        lent = {observer.quantity for observer in self._observers if observer.is_lent}
        for quantity in {observer.quantity for observer in self._observers if observer.watching} - lent:
            own = lent | {quantity} if quantity == QUANTITY else {quantity}
            look = sum(spent.get(name, 0.0) for name in own)
            looks += look
            self._looks[quantity].add(look, sum(device.get(name, 0.0) for name in own))
        host = sum(spent.values())
        sparse = sum([spent[part] for part in SPARSE if part in spent])
        if sparse:
            self._sparse.append(sparse)
        (self._light_floor if self._loop.is_light else self._floor).append(host - sparse - looks)
        self._look_behind(bool(device))
        self._num_steps += 1
        self._has_trained = self._has_trained or self._loop.clock.is_training
        if self._num_steps > 1:
            # The first step compiles and warms up, so it says nothing about later steps.
            self._steps.append(max(seconds - host, 0.0))
            self._window += seconds
            self._host += host
            self._device += sum(device.values())

    def _look_behind(self, uses_device: bool) -> None:
        # Asking takes calls of the driver. The answer is about the step before, so two steps in a row have to ask.
        nth = self._num_steps % BEHIND_EVERY if self._num_steps >= FIRST_BEHIND else 1
        if nth <= 1:
            is_behind = uses_device and self._is_behind()
            if nth == 1:
                self._behind.append(is_behind)

    def wrote(self, seconds: float, records: Sequence[StepRecord]) -> None:
        """Record the writer's time for these steps together. Called on the writer thread."""
        if self._ranks is not None:
            self._ranks.look()
        if not records:
            return
        self._writer += seconds
        rows = [{frame.quantity: len(frame.targets) for frame in record.frames} for record in records]
        per_row = seconds / sum(LIGHT_ROWS + sum(each.values()) for each in rows)
        for each in rows:
            self._writer_floor.append(per_row * LIGHT_ROWS)
            for quantity, number in each.items():
                if quantity in self._looks:
                    self._looks[quantity].writer.append(per_row * number)

    @property
    def _host_counts(self) -> bool:
        return not self._behind or sum(self._behind) < BEHIND * len(self._behind)

    def _decide(self) -> dict[str, float]:
        counts = self._host_counts
        cost = max(self._host + self._writer if counts else 0.0, self._device)
        numbers = {"overhead": cost / self._window} if self._window else {}
        self._window = self._host = self._device = self._writer = 0.0
        least = LEAST_SECONDS if self._has_trained else LEAST_WITHOUT_TRAINING
        limit = max(self.share * _median(self._steps), least)
        room = max(limit - (self._choose_sparse(limit) if counts else 0.0), LEAST_FOR_LOOKS * limit)
        for one in self._observers:
            # Every one of the first steps, unless a look uses up what a step may cost and a few of them are felt.
            if one.quantity in self._looks and self._looks[one.quantity].cost(counts) > max(room, MOST_FOR_FIRST):
                one.end_first_steps()
        if self._ranks is not None and not self._ranks.decides:
            return numbers
        needed, relaxed = self._intervals(room), self._intervals(SLACK * room)
        chosen = {
            one.quantity: min(max(one.every, needed[one.quantity]), relaxed[one.quantity])
            for one in _of(self._observers, needed)
        }
        if self._ranks is None:
            return {**numbers, **self._apply(chosen)}
        if any(one.every != chosen[one.quantity] for one in _of(self._observers, chosen)):
            self._ranks.propose(self._loop.clock.step, _median(self._steps), chosen)
        return numbers

    def _choose_sparse(self, limit: float) -> float:
        """Choose how many steps do without sparse parts, and are light if they can be; return the fixed cost."""
        floor, sparse = _median(self._floor), _median(self._sparse)
        light = _median(self._light_floor) if self._light_floor else floor
        if not self._light_floor and not self._was_sparse and self._loop.is_regular:
            light = 0.0  # as it may turn out
        self._saved = max(floor - light, 0.0)
        extra = sparse + self._saved
        every = self._costs.every = _interval(2 * extra, MOST_FOR_SPARSE * limit)
        if every == 1:
            self._saved = 0.0
        self._was_sparse = every > 1 and self._loop.is_regular
        fixed = floor + sparse if every == 1 else light + 2 * extra / every
        return fixed + _median(self._writer_floor)

    def _apply(self, chosen: Mapping[str, int]) -> dict[str, float]:
        """Apply these intervals; return those that the run does not list yet."""
        numbers: dict[str, float] = {}
        for observer in self._observers:
            every = chosen.get(observer.quantity)
            if every is None or observer.is_fixed:
                continue
            observer.every = every
            if observer.is_told != every:
                observer.is_told = every
                numbers[f"interval/{observer.quantity}"] = float(every)
        return numbers

    def _intervals(self, room: float) -> dict[str, int]:
        """Return the shortest intervals that fit: the most expensive quantity is sampled less often until they do."""
        counts = self._host_counts
        # A step in which anything is recorded is not light.
        costs = {quantity: looks.cost(counts) + self._saved for quantity, looks in self._looks.items()}
        fixed = sum(costs[one.quantity] / one.every for one in _of(self._observers, costs) if one.is_fixed)
        free = {one.quantity: one.usual_every for one in _of(self._observers, costs) if not one.is_fixed}
        most = {name: self._most(name, every) for name, every in free.items()}
        # Sampling the cheapest quantities less often would save nothing.
        open_ones = {name for name, every in free.items() if costs[name] / every > LEAST_SAVED * room}
        while open_ones and fixed + sum(costs[name] / every for name, every in free.items()) > room:
            dearest = max(open_ones, key=lambda name: costs[name] / free[name] * (YIELDS if name == QUANTITY else 1))
            if free[dearest] * 2 > most[dearest]:
                open_ones.discard(dearest)
            else:
                free[dearest] *= 2
        return free

    def _most(self, quantity: str, usual: int) -> int:
        most = MOST_BETWEEN_DISTRIBUTIONS if quantity == QUANTITY else MOST_EVERY
        return most if self._looks[quantity].num > 1 else usual * UNCERTAIN_FACTOR


def _interval(cost: float, room: float) -> int:
    """Return how often something that costs this much can be done."""
    every = 2
    while cost / every > room and every < MOST_SPARSE_EVERY:
        every *= 2
    return every if every > 2 else 1


def _of(observers: Iterable[QuantityObserver], quantities: Collection[str]) -> list[QuantityObserver]:
    """Return one observer for each quantity that has been sampled."""
    return list({one.quantity: one for one in observers if one.quantity in quantities}.values())


def _median(numbers: Collection[float]) -> float:
    # The writer adds to some of these at the same time.
    return statistics.median(tuple(numbers)) if numbers else 0.0
