"""Schedules that do not do what they are meant to: stepped too rarely, or without an end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar

from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import PerSeries


@rule("limit", needs="lr", stage="optimizer")
def lr_schedule(
    step: Step, first_step: int = 150, share: float = 0.05, rarely: int = 20, times: float = 30.0, rises: int = 20
) -> Iterator[Finding]:
    """A schedule whose warm-up makes no progress, or whose rate rises without end.

    Why: a warm-up that counts updates but is stepped once an epoch leaves the learning rate near zero for most of the
    run; one that is never stepped leaves it there for good. A wrong sign in a formula makes the rate grow.

    `share`: of the rate that the schedule starts from, below which it counts as still in its warm-up after `first_step`
    steps; it must have changed in fewer than one of `rarely` steps. `times`: how far above that rate one is that has
    risen in each of the last `rises` steps.

    Cause: the learning rate scheduler is stepped too rarely or never, or its formula is wrong

    Points to (global): schedule 5

    Next: Look at the rate with `vario show 'lr*'`. Check whether the scheduler counts updates or epochs, and that
    `scheduler.step()` is called as often.
    """
    rate = step.scalars.get("lr", math.nan)
    if math.isnan(rate):
        return
    memory = step.memory.get("lr_schedule", Schedule)
    row = memory.row("lr")
    initial = memory["initial"][row] = step.scalars.get("lr_initial", memory["initial"].item(row))
    last = memory["last"].item(row)
    if not math.isfinite(rate) or memory["told"][row]:
        return
    memory["last"][row] = rate
    memory["peak"][row] = peak = max(rate, memory["peak"].item(row))
    memory["changes"][row] += not math.isnan(last) and rate != last
    memory["rising"][row] = memory["rising"][row] + 1 if rate > last else 0
    age = step.number - step.memory.first_step(step.number) + 1
    if not initial > 0:
        return
    changes, text, cause = int(memory["changes"][row]), "", ""
    if age > first_step and peak <= share * initial and changes * rarely < age:
        often = f"changed in {changes} of {age} steps" if changes else f"not changed in {age} steps"
        text = f"the learning rate is still {number(rate)}, {number(100 * rate / initial, 2)} % of {number(initial)}: "
        text += f"it has {often}"
        cause = "the warm-up makes no headway: the scheduler is stepped once an epoch, not once an update, or never"
    elif rate > times * initial and memory["rising"][row] >= rises:
        text = f"the learning rate has grown to {number(rate)}, {number(rate / initial, 2)} times what its schedule "
        text += "starts from, and rises in each step"
        cause = "the schedule has no end, or its formula the wrong sign; a search for the best rate looks the same"
    if text:
        memory["told"][row] = 1
        yield Finding(
            text, "scalar", "lr", rate, high=initial, scope="global", strength=3.0, severity="note", cause=cause
        )


class Schedule(PerSeries):
    """What is known about the rate of the first group."""

    fields: ClassVar[Mapping[str, float]] = {
        **dict.fromkeys(("initial", "last"), math.nan),
        **dict.fromkeys(("peak", "changes", "rising", "told"), 0.0),
    }
