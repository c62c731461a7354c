"""Rules about the loss itself."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from vario.core.quantities import COMPANION_COPIED, LOSS, LOSS_BACKWARD, LOSS_LOCAL, LOSSES
from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.findings import WARM
from vario.rules.api.lasting_shift import lasting_shift, may_have_shifted, remembered
from vario.rules.api.series_state import YOUNG, Last, Longest, Streak, Trend


@rule("relative", is_quiet=True, is_symptom=True, needs=" ".join(LOSSES), stage="loss")
def loss_spike(step: Step, threshold: float = 6.0, share: float = 0.05) -> Iterator[Finding]:
    """A loss far from its usual value in one step.

    Why: the loss shows a problem last; something usually went wrong before it.

    Points to: data 1.5, labels 1

    Next: Look at the alerts of the preceding steps: `vario check --all` lists them.
    """
    if step.loss is None:
        return
    name, found = step.loss
    reach = threshold * found.spread
    if found.warmth >= WARM and abs(found.distance) > max(reach, share * abs(found.usual)):
        low, high = found.usual - 3 * found.spread, found.usual + 3 * found.spread
        yield Finding(
            f"{name} is {number(found.value)}, usually {number(found.usual)} ({number(low)} to {number(high)})",
            "scalar",
            name,
            found.value,
            low=low,
            high=high,
            scope="batch",
            strength=abs(found.distance) / found.spread,
        )


@rule("relative", is_symptom=True, needs=" ".join(LOSSES), stage="loss")
def loss_shift(step: Step, threshold: float = 9.8, share: float = 0.1) -> Iterator[Finding]:
    """A loss that moved to another level and stays there.

    Why: if every layer looks as before and the loss does not, then the batches, their labels or a term of the loss
    changed.

    Points to: labels 2, data 2, loop 1

    Next: Look at the batches since that step, labels first. Then check the masks, weights and terms of the loss.
    """
    name = _name(step)
    if COMPANION_COPIED in step.scalars:
        step.memory.get("loss_shift copies", Last).swap_one("copy", step.scalars[COMPANION_COPIED], step.number)
    if name is None:
        return
    losses = remembered(step.memory, f"loss_shift {name}", step.scalars[name])
    if step.is_one_of_many:
        return
    highest = float(step.memory.get("loss_shift highest", Longest).update((name,), np.array([step.scalars[name]]))[0])
    newest = losses.tolist()
    if name == LOSS_BACKWARD:
        share = max(share, OBJECTIVE)
    if not may_have_shifted(newest, None, share, threshold):
        return
    found = lasting_shift(losses, threshold)
    if found is None or (found.size < 0 and not _fell_at_once(newest)):
        return  # learning takes more than a step
    if 0 <= found.value < LEARNT * highest:
        return  # what is left of a loss that is learned to the end is rounding
    if -LEARNED_AT_ONCE * found.usual < found.size < 0 and found.usual > AT_START * highest:
        return  # the first fall from where it started is learning, which may begin late and at once
    since = step.number - found.looks_ago
    is_far = abs(found.size) > share * found.level and not _has_moved_so_far(step, name, found.size)
    copies = step.memory.get("loss_shift copies", Last)
    if is_far and not since - 2 <= copies.one("step", "copy") <= since + COPY_SEEN_WITHIN:
        # The line through a loss that falls ever more slowly leads below zero, where no such loss gets.
        lowest = min(filter(math.isfinite, newest))
        usual = max(found.usual, lowest) if lowest > 0 else found.usual
        yield Finding(
            f"{name} has {'risen' if found.size > 0 else 'fallen'} to {number(found.value)} and stays there, "
            f"expected {number(usual)}",
            "scalar",
            name,
            found.value,
            low=usual - 3 * found.noise,
            high=usual + 3 * found.noise,
            scope="batch",
            strength=abs(found.size) / max(abs(usual), 1e-12),
            since=since,
            cause="" if step.has_looked("activation", since) else UNSEEN.format(since),
        )


COPY_SEEN_WITHIN = 6
"""A target network that was copied at a step is looked at within so many; the loss then compares with another model."""
UNSEEN = (
    "the data, the labels or a term of the loss changed, or the model itself: no activation has been recorded since "
    "step {}"
)
OBJECTIVE = 0.4
"""The share of its level by which an objective must move that may be any: those of agents move with what they meet."""
AT_START = 0.8
"""A loss above this share of its highest has learned nothing so far."""
LEARNED_AT_ONCE = 0.5
"""The share of a loss that may be learned between two steps."""
LEARNT = 1e-6
"""The share of the highest loss below which its level says nothing."""
AGAIN, PAUSE = 1.5, 20
"""A shift counts as new if it is so many times as large as any before, seen so many steps ago."""


def _has_moved_so_far(step: Step, name: str, shift: float) -> bool:
    """Whether the loss has shifted as far before, as it does at each copy of a target network; remembers this shift."""
    memory = step.memory.get(f"loss_shift {name} before", Last)
    row = memory.row("up" if shift > 0 else "down")
    largest, when = memory["value"].item(row), memory["step"].item(row)
    if math.isnan(largest) or abs(shift) > largest or step.number - when <= PAUSE:
        memory["value"][row] = max(abs(shift), 0.0 if math.isnan(largest) else largest)
    memory["step"][row] = step.number
    quiet = memory.row("quiet")
    if not step.number - when <= PAUSE:
        # What is decided when a shift begins holds while it lasts.
        memory["value"][quiet] = float(abs(shift) < AGAIN * largest)
    return memory["value"].item(quiet) == 1


FALL, FALLING, AT_ONCE = 4, 24, 0.6
"""Losses on each side of a fall, losses in which learning may show, and the share of its fall that one step may be."""


def _fell_at_once(losses: list[float]) -> bool:
    """Whether most of the recent fall lies between two steps."""
    whole = _mean(losses[-FALL:]) - _mean(losses[-FALLING : -FALLING + FALL])
    falls = (_mean(losses[-at:][:FALL]) - _mean(losses[-at - FALL : -at]) for at in range(2, 3 * FALL + 1))
    steepest = min((fall for fall in falls if math.isfinite(fall)), default=0.0)
    return not whole < 0 or steepest <= AT_ONCE * whole


def _mean(values: list[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


@rule("relative", is_symptom=True, needs=" ".join(LOSSES), stage="loss")
def loss_swings(step: Step, times: float = 1.8, share: float = 0.1, steps: int = 6) -> Iterator[Finding]:
    """A loss that swings far more from step to step than before.

    Why: batches differ too much from each other: rows sorted by label or source, or a batch that is too small.

    Points to: data 3, labels 1

    Next: Check that the loader still shuffles (`shuffle=True`, or `set_epoch` of the sampler), and that the batch size
    is unchanged.
    """
    name = _name(step)
    if name is None:
        return
    last = step.memory.get(f"loss_swings {name} last", Last).swap_one("loss", step.scalars[name], step.number)
    if math.isnan(last):
        return
    swing = abs(step.scalars[name] - last)
    trend = step.memory.get(f"loss_swings {name}", Trend(linear=True, floor=1e-9))
    level, *_, age, _, _ = trend.entries("swing")
    if age > YOUNG:
        # One batch far off makes two wide swings, not a habit.
        swing = min(swing, 2 * times * level)
    found = trend.follow("swing", swing, step.number)
    if found is None:
        return
    lately, usual = found.fast, found.usual
    is_wide = found.warmth >= 1.5 * WARM and lately > times * usual and lately > share * abs(last)
    is_wide = is_wide and not _is_falling(step)  # where learning sets in, batches begin to differ
    count = step.memory.get(f"loss_swings {name} wide", Streak).follow("swing", is_wide)
    if count >= steps:
        yield Finding(
            f"{name} swings by {number(lately)} from step to step, usually by {number(usual)}",
            "scalar",
            name,
            lately,
            high=times * usual,
            scope="batch",
            strength=float(np.log(lately / max(usual, 1e-12))),
            since=step.number - count + 1,
        )


def _is_falling(step: Step, share: float = 0.1) -> bool:
    """Whether the recent loss is well below that of many steps."""
    return step.loss is not None and step.loss[1].slow - step.loss[1].fast > share * abs(step.loss[1].slow)


def _name(step: Step) -> str | None:
    """The loss to check: the model's own, the logged one, or the tensor backward() was called on.

    The last may be any objective. One that is not positive, such as a policy objective, has no level to compare with.
    """
    name = next((known for known in (LOSS_LOCAL, LOSS, LOSS_BACKWARD) if known in step.scalars), None)
    if name is None or not math.isfinite(step.scalars[name]):
        return None
    return None if name == LOSS_BACKWARD and step.scalars[name] <= 0 else name
