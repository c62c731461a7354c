"""Learning rate changes that no schedule explains."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

import numpy as np

from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.alerts import Severity
from vario.rules.api.findings import common_name
from vario.rules.api.series_state import Last, PerSeries

RESTING = 10
"""Steps in a row without a rise after which the warm-up counts as over."""
SETTLED = 50
"""Steps after which it is known whether rates change places, as those of optimizers that take turns do."""
STEADY = 1e-4
"""Two ratios of successive rates this close count as the same exponential decay or growth."""


@rule("exact", needs="lr lr/", stage="optimizer", chart="ratio")
def lr_change(step: Step, factor: float = 2.5, first_step: int = 10, ratio: float = 1.03) -> Iterator[Finding]:
    """A learning rate that jumps, falls to zero, or grows or shrinks exponentially.

    Why: schedules change in small steps. A jump means that the scheduler was stepped twice, recreated or loaded
    incorrectly. A rate that shrinks by the same few per cent each step is near zero before anybody notices. What a
    scheduler of PyTorch sets is not reported: it is on the chart.

    Cause: the learning rate scheduler is configured, loaded or stepped incorrectly

    Points to: schedule 5

    Next: Look at the rate with `vario show 'lr*'`, then check where the scheduler is stepped. After a resume, check
    that its state was loaded (`last_epoch`).
    """
    names = tuple(name for name in step.scalars if name == "lr" or name.startswith("lr/"))
    if not names or step.was_skipped:
        return
    _place(step)  # learns the usual value
    memory = step.memory.get("lr_change", Rates)
    if names == ("lr",) and "lr_scheduled" not in step.scalars and memory.stays(step.scalars["lr"], step.number):
        return
    first, known = memory.known("lr"), {name: memory.known(name)[0] for name in memory.names}
    moves = {name: memory.follow(name, step.scalars[name], step.number, first, ratio) for name in names}
    returned = {name for name, move in moves.items() if _has_returned(step, name, move)}
    is_scheduled = step.is_scheduled
    # Optimizers that do not all update in each step are numbered in the order in which they do: rates change places.
    before, now = set(known.values()), {move.rate for move in moves.values()}
    has_swapped = (len(known) > 1 and now <= before) or (len(moves) > len(known) > 0 and before <= now)
    if has_swapped and len(moves) == len(known) and any(move.rate != move.last for move in moves.values()):
        has_swapped = _swaps_often(step)
    if step.number < first_step or is_scheduled or has_swapped:
        _note_peak(step, moves)
        return  # what a scheduler does is on the chart
    is_added = any(name.endswith("parameters_in_optimizer") for name in step.scalars)
    for name, move in moves.items():
        if (is_added and name not in known) or name in returned:
            continue  # a group that was added has no past; one that went there and back was reported
        rate, last, change = move.rate, move.last, move.change
        text = ""
        if math.isnan(last) or last == 0 or rate == last or not math.isfinite(change):
            continue
        if rate == change == 0 and last > 0:
            # A schedule that ends at zero approaches it gradually.
            if last < _peak(step) * 0.02:
                continue
            text = f"learning rate fell from {number(last)} to 0"
        elif max(change, 1 / (change or 1e-300)) > factor and not rate < last < 0.1 * _peak(step):
            if _has_dropped_so_before(step, change):
                continue
            text = f"learning rate went from {number(last)} to {number(rate)} in one step"
        elif move.times_as_fast > 0:
            text = f"learning rate changes {number(move.times_as_fast, 2)} times as fast as before, now {number(rate)}"
        elif move.rising >= 6:
            text = f"learning rate rises again, by a factor of {number(change, 4)} each step, now {number(rate)}"
        elif move.shrinking >= (8 if change < 0.95 else 15):
            text = f"learning rate shrinks by a factor of {number(change, 3)} each step, now {number(rate)}"
        if text:
            yield Finding(
                text + ("" if name == "lr" else f" (group {name.removeprefix('lr/')})"),
                "scalar" if name == "lr" else "update",
                name if name == "lr" else _place(step),
                rate,
                low=last,
                high=last,
                scope="global" if name == "lr" else "tensor",
                strength=abs(np.log(max(rate, 1e-30) / last)),
                severity=_severity(step, rate, factor),
            )
    _note_peak(step, moves)


class Move(NamedTuple):
    """How a rate changed since the previous step."""

    rate: float
    last: float
    """The previous rate; NaN if there was none."""
    change: float
    """The rate divided by the previous one."""
    shrinking: int
    """Steps in a row that it shrank by the same factor."""
    rising: int
    """Steps in a row that it rose after the warm-up."""
    times_as_fast: float
    """How many times faster it has changed in the last two steps, if it changed evenly before; otherwise 0."""


class Rates(PerSeries):
    """The last rate of each group and how it changed; plain numbers, since there are few groups and many steps."""

    fields: ClassVar[Mapping[str, float]] = {
        **dict.fromkeys(("value", "step", "change", "trial", "trial_step"), math.nan),
        **dict.fromkeys(("shrinking", "calm", "rests", "rising", "evenly"), 0.0),
    }

    def known(self, name: str) -> tuple[float, float]:
        """Return the last rate of a group, and its step."""
        row = self.row(name)
        return self["value"].item(row), self["step"].item(row)

    def stays(self, rate: float, step: int) -> bool:
        """Follow the rate of the only group if it has long been the same; return whether it has."""
        row = self.row("lr")
        last, when, change, _, _, shrinking, calm, rests, rising, evenly = self._table[:, row].tolist()
        if rate != last or change != 1 or when != step - 1 or not rests or shrinking or rising or evenly:
            return False
        self["step"][row], self["calm"][row] = step, calm + 1
        return True

    def follow(self, name: str, rate: float, step: int, first: tuple[float, float], ratio: float) -> Move:
        """Add the rate of one group; `first` is what is known about the first group."""
        row = self.row(name)
        # In the order of `fields`.
        last, when, earlier, trial, trial_step, shrinking, calm, rests, rising, evenly = self._table[:, row].tolist()
        # A group is recorded once its rate differs from the first group's: until then it was the same.
        if math.isnan(when) or when < first[1]:
            last, when = first
        change = 1.0 if when != step - 1 else _divided(rate, last)
        # Schedules decay along lines, cosines and roots, but not by the same few per cent each time.
        shrinking = shrinking + 1 if abs(change - earlier) < STEADY and change < 1 / ratio else 0.0
        # After a warm-up they do not rise again, except in cyclic schedules.
        calm = calm + 1 if change <= 1 else 0.0
        rests = max(rests, float(calm >= RESTING))
        rising = rising + 1 if rests and change > 1.002 else 0.0
        pace, before = _log(change), _log(earlier)
        times = _divided(pace, before)
        is_even = math.isfinite(times) and abs(times - 1) < 0.15 and abs(pace) > 1e-9
        faster = trial if is_even and trial > 0 and trial_step == step - 1 else 0.0
        # One faster step starts a trial: the next step must confirm it.
        trial = times if evenly >= 10 and math.isfinite(times) and times > 1.6 else math.nan
        evenly = evenly + 1 if is_even else 0.0
        self._table[:, row] = rate, step, change, trial, step, shrinking, calm, rests, rising, evenly
        return Move(rate, last, change, int(shrinking), int(rising), faster)


def _divided(one: float, other: float) -> float:
    return one / other if other else math.nan if one == 0 else math.copysign(math.inf, one)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf if value == 0 else math.nan


def _has_returned(step: Step, name: str, move: Move) -> bool:
    """Whether a rate is what it was before it last changed, as that of optimizers which update in different steps."""
    if move.rate == move.last or math.isnan(move.last):
        return False
    return step.memory.get("lr_change before", Last).swap_one(name, move.last, step.number) == move.rate


def _has_dropped_so_before(step: Step, change: float) -> bool:
    """Whether the rate was divided by the same number before, as code does that lowers it when learning has stalled."""
    if change >= 1:
        return False
    before = step.memory.get("lr_change drop", Last).swap_one("change", change, step.number)
    return abs(before - change) < STEADY * change


def _swaps_often(step: Step) -> bool:
    """Whether rates have changed places before, or do so in the first steps: groups in one optimizer never do."""
    memory = step.memory.get("lr_change places", Last)
    is_usual = memory.one("value", "swapped") == 1 or step.number - step.memory.first_step(step.number) < SETTLED
    memory.swap_one("swapped", 1.0, step.number)
    return is_usual


def _note_peak(step: Step, moves: Mapping[str, Move]) -> None:
    highest = max(move.rate for move in moves.values())
    if highest > _peak(step) or math.isnan(_peak(step)):
        step.memory.get("lr_change peak", Last).swap_one("peak", highest, step.number)


def _peak(step: Step) -> float:
    """The highest rate so far; NaN if there is none."""
    memory = step.memory.get("lr_change peak", Last)
    return memory.one("value", "peak")


def _severity(step: Step, rate: float, factor: float) -> Severity:
    """How certain it is that the change was not intended.

    Schedules drop by a factor of ten at a milestone, restart from their peak, or decay exponentially; a script that
    sets the rate looks the same. None rises far above the highest rate so far, or drops straight to zero, unless a new
    stage of training begins with its own optimizer.
    """
    is_proof = rate == 0 or rate > factor * _peak(step)
    return "page" if is_proof and not step.has_new_optimizer else "note"


def _place(step: Step) -> str | None:
    """The parameters whose update changed in this step: those of the group."""
    deviation = step.trend("update", "max", "ratio")
    if deviation is None:
        return None
    off = (np.abs(deviation.z) > 4) & (np.abs(deviation.distance) > np.log(2))
    return common_name([deviation.targets[index] for index in map(int, np.flatnonzero(off))]) or None
