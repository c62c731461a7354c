"""Updates that are too large or too small for their weights."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Last, Streak, Values


@rule("limit", needs="update")
def update_high(step: Step, limit: float = 0.06, steps: int = 4) -> Iterator[Finding]:
    """Updates that are a large part of the weights they change.

    Why: a healthy update is about a thousandth of its weight. At a tenth the model forgets what it has learned. In the
    first steps, weights that start at or near zero get relatively larger updates: up to twice what as many equal
    updates from zero explain is not reported, unless the loss rises. While the loss falls, large updates do no harm yet
    and are a note.

    Cause: the learning rate is too high for these weights, or has no warm-up

    Points to: schedule 3, optimizer 1

    Next: Lower the learning rate or lengthen its warm-up, and check weight decay.
    """
    ratios = _ratios(step)
    if not len(ratios):
        return
    middle = float(np.median(ratios))
    begun = step.memory.get("update_high begun", Last)
    first = begun.one("value", "step")
    if np.isnan(first):
        first = begun["value"][begun.row("step")] = float(step.number)
    high = max(limit, 0.0 if _loss_rises(step, int(step.number - first)) else AT_FIRST / (step.number - first + 1))
    count = step.memory.get("update_high", Streak).follow("all", middle > high)
    if step.number == first:
        begun["value"][begun.row("ratio")] = middle
    # The first update of weights that do not start at zero says whether the rate is far too high, if it did harm.
    is_first = (
        FIRST_LOOK <= step.number - first <= 2 * FIRST_LOOK
        and begun.one("value", "ratio") > FIRST_LIMIT
        and _loss_rises(step, int(step.number - first), HARMED, at_once=True)
    )
    if is_first or count >= (steps if middle < FAR * high else 2):
        share = begun.one("value", "ratio") if is_first else middle
        what = "the first update was" if is_first else "updates are"
        yield Finding(
            f"{what} {number(100 * share, 3)} % of the weights (median of {len(ratios)} matrices)",
            "update",
            statistic="ratio",
            value=share,
            high=limit if is_first else high,
            scope="global",
            strength=float(np.log(share / (limit if is_first else high))),
            since=int(first) if is_first else step.looks_ago("update", count),
            severity="note" if _loss_falls(step) and not is_first else None,
        )


AT_FIRST = 2.0
FAR = 4.0
"""So many times the limit need not be seen more than twice."""
FIRST_LOOK, FIRST_LIMIT, HARMED = 2, 0.5, 1.2
"""The steps after which the first update is judged, its size, and how many times its start the loss must be."""
FIRST_STEPS, RISE = 30, 1.5


def _loss_rises(step: Step, age: int, times: float = RISE, at_once: bool = False) -> bool:
    """Whether the loss of the first steps is well above that of the first: such updates are no learning.

    `at_once`: or that of this step alone, if the mean so far is above it too. One batch may be hard by chance.
    """
    if step.loss is None or age > FIRST_STEPS:
        return False
    _, loss = step.loss
    first = step.memory.get("update_high loss", Last)
    row = first.row("loss")
    if math.isnan(first["value"].item(row)):
        first["value"][row] = loss.value
    start = first["value"].item(row)
    is_harmed_now = at_once and loss.value > times * start and loss.fast > start
    return start > 0 and (loss.fast > times * start or is_harmed_now)


def _loss_falls(step: Step) -> bool:
    """Whether the recent loss is below its long-term mean: an optimizer with a line search makes large updates."""
    return step.loss is not None and step.loss[1].fast < step.loss[1].slow


LEARNT = 1e-4
"""The share of the highest loss below which all is learned."""


def _is_learnt(step: Step) -> bool:
    """Whether hardly anything is left of the loss."""
    if step.loss is None:
        return False
    _, loss = step.loss
    highest = step.memory.get("update_low loss", Last)
    row = highest.row("loss")
    known = highest["value"][row] = np.fmax(highest["value"].item(row), loss.fast)
    return bool(0 <= loss.fast < LEARNT * known)


@rule("limit", needs="update")
def update_low(step: Step, limit: float = 1e-7, steps: int = 5) -> Iterator[Finding]:
    """Updates that are negligible compared with the weights they change.

    Why: the run costs as much as any other and learns nothing.

    Cause: the learning rate is near zero, or the optimizer's eps dominates the gradients

    Points to: schedule 3, optimizer 2

    Next: Check the learning rate with `vario show lr` and raise it if it is too low. If the gradients are tiny, lower
    the optimizer's `eps`.
    """
    ratios = _ratios(step)
    if not len(ratios):
        return
    rate = step.scalars.get("lr", np.nan)
    peak = step.memory.get("update_low", Last)
    row = peak.row("rate")
    known = peak["value"][row] = np.fmax(np.fmax(peak["value"][row], rate), 0.0)
    is_learnt = _is_learnt(step)
    if step.was_skipped or step.has_nothing_to_learn:
        return
    middle = float(np.median(ratios))
    # A schedule that ends at zero makes small updates on purpose, and with no loss left there is nothing to learn.
    is_low = middle < limit and not rate < 0.01 * known and not is_learnt
    count = step.memory.get("update_low streak", Streak).follow("all", is_low)
    if count >= step.looks_for("update", steps):
        yield Finding(
            f"updates are {number(middle)} of the weights (median of {len(ratios)} matrices)",
            "update",
            statistic="ratio",
            value=middle,
            low=limit,
            scope="global",
            strength=1.0,
            since=step.looks_ago("update", count),
        )


@rule("limit", needs="update")
def update_uneven(step: Step, factor: float = 50.0, steps: int = 10) -> Iterator[Finding]:
    """A matrix that Adam moves far less than the others.

    Why: Adam moves all weights by about the learning rate. One that moves fifty times less is in a group with another
    rate, or its gradients are small compared with eps.

    Cause: its group's learning rate is too low, or eps is too high

    Points to: optimizer 4

    Next: Check the learning rate of the param group it is in. Then look at its gradients: `vario show NAME --quantity
    gradient --statistic rms`.
    """
    change, health = step.rows("update", "change"), step.rows("update", "grad_vs_second_moment")
    if not len(health) or step.was_skipped:
        return
    adam = set(health.targets)
    sizes = change.statistic("rms")
    judged = step.facts.are_matrices(change.targets) & np.array([name in adam for name in change.targets], np.bool_)
    if judged.sum() < 4:
        return
    middle = float(np.median(sizes[judged]))
    is_low = judged & (sizes * factor < middle) & (sizes > 0)
    count = step.memory.get("update_uneven", Streak).update(change.targets, is_low)
    for index in np.flatnonzero(count >= step.looks_for("update", steps))[:16]:
        yield Finding(
            f"updates of '{change.targets[index]}' are {number(middle / sizes[index], 3)} times smaller than those of "
            "most matrices",
            "update",
            change.targets[index],
            float(sizes[index]),
            "rms",
            low=middle / factor,
            order=float(index),
            strength=float(np.log(middle / sizes[index])),
            since=step.looks_ago("update", int(count[index])),
        )


def _ratios(step: Step) -> Values:
    rows = step.rows("update", "ratio")
    values = rows.statistic("max")[step.facts.are_matrices(rows.targets)]
    found: Values = values[np.isfinite(values)]
    return found
