"""Learning rates that no schedule explains."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.detection.alerts import Severity
from vario.detection.memory import Calm, Last, Streak, Values
from vario.detection.telling import common_name
from vario.rules import Finding, Step, rule
from vario.text import number

RESTING = 10
"""Steps in a row without a rise after which the warm-up is over."""
STEADY = 1e-4
"""Two ratios of successive rates this near to each other are one and the same decay or growth."""


@rule("exact", needs="lr lr/")
def lr_change(step: Step, factor: float = 2.5, first_step: int = 10, ratio: float = 1.03) -> Iterator[Finding]:
    """A learning rate that jumps, falls to zero, or grows or shrinks exponentially.

    Why: schedules move in small steps. A jump is a scheduler that was stepped twice, made anew or loaded wrongly; a
    rate that shrinks by the same few per cent each step is gone before anybody notices.

    Next: Look at the rate with `vario show 'lr*'`, then check where the scheduler is stepped. After a resume, check
    that its state was loaded (`last_epoch`).
    """
    names = tuple(name for name in step.scalars if name == "lr" or name.startswith("lr/"))
    if not names or step.was_skipped:
        return
    rates = np.array([step.scalars[name] for name in names])
    kept = step.memory.get("lr_change", Last())
    first_before, first_when = kept.read("value", ("lr",))[0], kept.read("step", ("lr",))[0]
    before, when = kept.swap(names, rates, step.number)
    # A group is named when its rate differs from the first one's: until then it had the same.
    is_new = np.isnan(when) | (when < first_when)
    before, when = np.where(is_new, first_before, before), np.where(is_new, first_when, when)
    with np.errstate(all="ignore"):
        change = rates / before
    change[when != step.number - 1] = 1.0
    earlier, _ = step.memory.get("lr_change ratio", Last()).swap(names, change, step.number)
    _place(step)  # learns what is usual
    faster = _moves_faster(step, names, change, earlier)
    # Rates come down along lines, cosines and roots, but not by the same few per cent each time.
    is_steady = (np.abs(change - earlier) < STEADY) & (change < 1 / ratio)
    shrinking = step.memory.get("lr_change shrinking", Streak()).update(names, is_steady)
    # After a warm-up they do not rise again, unless in cycles.
    rests = step.memory.get("lr_change rests", Calm()).update(names, change <= 1, RESTING)
    rising = step.memory.get("lr_change rising", Streak()).update(names, rests & (change > 1.002))
    if step.number < first_step:
        return
    for index, name in enumerate(names):
        rate, last = rates[index], before[index]
        text = ""
        if np.isnan(last) or last == 0 or rate == last or not np.isfinite(change[index]):
            continue
        if rate == 0 and change[index] == 0 and last > 0:
            # A schedule that ends at zero comes down to it.
            if last < step.memory.get("lr_change peak", Last())["value"][0] * 0.02:
                continue
            text = f"learning rate fell from {number(last)} to 0"
        elif max(change[index], 1 / change[index]) > factor and not _comes_down(step, last, rate):
            text = f"learning rate went from {number(last)} to {number(rate)} in one step"
        elif faster[index] > 0:
            text = f"learning rate changes {number(faster[index], 2)} times as fast as before, now {number(rate)}"
        elif rising[index] >= 6:
            text = f"learning rate rises again, by a factor of {number(change[index], 4)} each step, now {number(rate)}"
        elif shrinking[index] >= (8 if change[index] < 0.95 else 15):
            text = f"learning rate shrinks by a factor of {number(change[index], 3)} each step, now {number(rate)}"
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
    _remember_peak(step, rates)


def _severity(step: Step, rate: float, factor: float) -> Severity:
    """How sure it is that nobody meant it.

    Schedules drop by ten at a milestone, start again from their top, and decay exponentially; a script that sets a rate
    looks the same. None goes far above the highest rate so far, or to zero from any height, unless a stage of training
    begins with an optimizer of its own.
    """
    peak = step.memory.get("lr_change peak", Last()).read("value", ("peak",))[0]
    is_proof = rate == 0 or rate > factor * peak
    return "page" if is_proof and not step.has_new_optimizer else "note"


def _moves_faster(step: Step, names: tuple[str, ...], change: Values, earlier: Values) -> Values:
    """How many times faster a rate moves since two steps ago, where it moved evenly before; 0 where it does not."""
    with np.errstate(all="ignore"):
        pace, before = np.log(change), np.log(earlier)
        times = pace / before
    is_even = np.isfinite(times) & (np.abs(times - 1) < 0.15) & (np.abs(pace) > 1e-9)
    evenly = step.memory.get("lr_change evenly", Streak())
    had = evenly.read("count", names)
    # One step that is faster begins a trial: the next must go on like it.
    trial, when = step.memory.get("lr_change trial", Last()).swap(
        names, np.where((had >= 10) & np.isfinite(times) & (times > 1.6), times, np.nan), step.number
    )
    evenly.update(names, is_even)
    found: Values = np.where(is_even & (trial > 0) & (when == step.number - 1), trial, 0.0)
    return found


def _place(step: Step) -> str | None:
    """Which parameters the update of this step treats otherwise than before: those of the group."""
    deviation = step.trend("update", "max", "ratio")
    if deviation is None:
        return None
    off = (np.abs(deviation.z) > 4) & (np.abs(deviation.distance) > np.log(2))
    return common_name([deviation.targets[index] for index in map(int, np.flatnonzero(off))]) or None


def _remember_peak(step: Step, rates: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    peak = step.memory.get("lr_change peak", Last())
    known = peak.read("value", ("peak",))[0]
    peak.swap(("peak",), np.array([np.nanmax([known, rates.max()])]), step.number)


def _comes_down(step: Step, last: float, rate: float) -> bool:
    """Whether a schedule is at its very end, where the last steps of a straight line are large ratios."""
    peak = step.memory.get("lr_change peak", Last())
    known = peak.read("value", ("peak",))[0]
    return bool(rate < last < 0.1 * known)
