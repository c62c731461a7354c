"""What ranks took for the parts of their steps, observation by observation, so that they can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vario.rules.api.series_state import Last, PerSeries, Positions, Values
from vario.rules.api.step_view import RanksStep

OWN = {
    "update_seconds": "the optimizer",
    "wait_seconds": "loading data, or other work between steps,",
    "forward_seconds": "forward",
    "backward_seconds": "backward",
}
"""The parts of a step that a rank does alone, in order after the reduction of gradients, and what to call them."""
STEP = "step_seconds"

WINDOW = 32
"""The last observations that count."""
BLOCK, BLOCKS = 8, 16
"""Means of so many count as one, if single ones show nothing: several workers that load slowly are all late at the same
step, and the steps after that find their batches ready."""
KEPT = BLOCK * BLOCKS


class Window(PerSeries):
    """The last observations of each series, the newest last."""

    fields: ClassVar[Mapping[str, float]] = dict.fromkeys(map(str, range(KEPT)), np.nan)

    def push(self, names: tuple[str, ...], values: Values) -> Values:
        """Add one observation of each series; return their last ones, by series and observation."""
        rows = self.at(names)
        self._made()
        kept = self._table[:, rows]
        kept[:-1] = kept[1:]
        kept[-1] = values
        self._table[:, rows] = kept
        return kept.T


class Gathered(PerSeries):
    """What was measured since the last observation, and whether a series was ever measured."""

    fields: ClassVar[Mapping[str, float]] = {"sum": 0.0, "count": 0.0, "seen": 0.0}


@dataclass(frozen=True)
class Observed:
    """One number of each rank, by name, and the first step it is of."""

    step: int
    numbers: Mapping[str, Values]


@dataclass(frozen=True)
class Recent:
    """The last observations of some numbers on all ranks."""

    ranks: list[int]
    steps: Values
    times: Values
    """When these steps ended."""
    numbers: Mapping[str, Values]
    """By rank and observation."""

    @property
    def step_seconds(self) -> float:
        """What a step takes; 0 if nobody measured it."""
        found = self.numbers[STEP][np.isfinite(self.numbers[STEP])]
        return float(np.median(found)) if len(found) else 0.0

    def at(self, chosen: Positions | slice) -> Recent:
        """These observations alone."""
        numbers = {name: values[:, chosen] for name, values in self.numbers.items()}
        return Recent(self.ranks, self.steps[chosen], self.times[chosen], numbers)

    def in_blocks(self) -> Recent:
        """Means of several steps in place of each one, with the first step of each."""
        found = self.at(slice(len(self.steps) % BLOCK, None))
        means = {
            name: values.reshape(len(self.ranks), -1, BLOCK).mean(axis=2) for name, values in found.numbers.items()
        }
        return Recent(self.ranks, found.steps[::BLOCK], found.times[::BLOCK], means)


def gathered(step: RanksStep) -> Observed | None:
    """What each rank took for its parts, once all have told of all; None until then.

    Within the overhead budget each rank measures some steps and not others: then means of several steps are compared.
    """
    names = (*OWN, STEP)
    now = np.array([[step.steps[rank].scalars.get(name, np.nan) for rank in step.ranks] for name in names])
    is_there = ~np.isnan(now)
    if not is_there[: len(OWN)].any():
        return None
    kept = step.memory.get(f"{which(step.ranks)} gathered", Gathered())
    rows = kept.at(tuple(f"{rank}/{name}" for name in names for rank in step.ranks)).reshape(now.shape)
    if not kept["count"][rows].any():
        step.memory.get(f"{which(step.ranks)} begun", Last).swap_one("step", 0.0, step.number)
    kept["sum"][rows] += np.where(is_there, now, 0.0)
    kept["count"][rows] += is_there
    kept["seen"][rows] += is_there
    counts = kept["count"][rows]
    expected = np.all(kept["seen"][rows] > 0, axis=1)[: len(OWN)]
    begun = int(step.memory.get(f"{which(step.ranks)} begun", Last).one("step", "step"))
    is_overdue = step.number - begun >= KEPT
    if not expected.any() or not ((counts[:-1][expected] > 0).all() or is_overdue):
        return None
    with np.errstate(invalid="ignore"):
        means = kept["sum"][rows] / counts
    kept["sum"][rows] = kept["count"][rows] = 0.0
    return Observed(begun, dict(zip(names, means, strict=True)))


def recent(step: RanksStep, what: str, observed: Observed) -> Recent | None:
    """Add an observation; return the last ones, or None until there are enough."""
    ranks, numbers = step.ranks, observed.numbers
    names = (*(f"{rank}/{name}" for name in numbers for rank in ranks), "step", "time")
    now = np.concatenate([*numbers.values(), [observed.step, max(step.steps[rank].time for rank in ranks)]])
    kept = step.memory.get(f"{which(ranks)} {what}", Window()).push(names, now)
    kept = kept[:, np.isfinite(kept[-2])]
    if kept.shape[1] < WINDOW:
        return None
    values = kept[:-2].reshape(len(numbers), len(ranks), -1)
    return Recent(ranks, kept[-2], kept[-1], dict(zip(numbers, values, strict=True)))


def which(ranks: list[int]) -> str:
    """What is remembered of these ranks: a step that some do not have is kept apart from those that all have."""
    return f"slow ranks: {len(ranks)} from {ranks[0]} to {ranks[-1]}"
