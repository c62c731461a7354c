"""Slow drift of a tensor's size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.findings import MOST_TOLD, WARM, tell
from vario.rules.api.series_state import Calm, Streak

LOOKED_AT = "activation", "weight", "gradient", "update"
LEARNING = 3.0
"""How much faster than the loss falls weights and activations may grow without an alert."""
LEAVING = 4
NOISY = 1.5
"""How many of its usual spreads the mean of a few values must have moved: a noisy series moves its own mean."""
CALM = 20
"""Observations in a row without drift."""


@rule("relative", needs=" ".join(LOOKED_AT))
def drift(
    step: Step,
    activation: float = 2.0,
    weight: float = 1.4,
    gradient: float = 4.0,
    update: float = 3.0,
    offset: float = 0.6,
    times: float = 2.5,
) -> Iterator[Finding]:
    """A tensor whose size keeps moving away from its long-term mean, faster than usual.

    Why: growth of a few per cent per step never looks like a spike but still ends in overflow.

    Cause: this layer is unstable or decaying

    Cause (global): all tensors drift together: the optimizer (its learning rate or weight decay) or the loss scale

    Points to: module 1.5, schedule 1.5, optimizer 1

    Points to (global): optimizer 2, schedule 2

    Next: Find out what the named tensors have in common: a layer, an optimizer option, a missing loss term. Use `vario
    show NAME` to see when it began.
    """
    if step.quantities.isdisjoint(LOOKED_AT):
        return
    learnt = _learnt(step)
    looked_at = (
        ("activation", "", "rms", activation),
        ("weight", "", "rms", weight),
        ("gradient", "", "rms", gradient),
        ("update", "pace", "max", update),
    )
    for quantity, part, statistic, factor in looked_at:
        deviation = step.trend(quantity, statistic, part)
        if deviation is None or (quantity in ("gradient", "update") and step.was_skipped):
            continue
        size = np.abs(deviation.gap)
        # What moves from the start, such as a bias initialised to zero, is learning; drift begins after a calm period.
        calm = step.memory.get(f"drift {quantity}", Calm)
        is_calm = (deviation.warmth >= WARM) & (size < np.log(factor) / 2) & (not step.is_warming_up)
        was_calm = calm.update(deviation.targets, is_calm, CALM)
        flagged = was_calm & (deviation.warmth >= WARM) & (size > np.log(factor)) & (size > times * deviation.usual_gap)
        flagged &= np.sign(deviation.gap) == np.sign(deviation.distance)
        if quantity == "activation":
            rows = step.rows(quantity).summaries
            flagged &= rows[:, 0] > 1  # a single number is a loss
            flagged &= ~step.facts.are_indices(deviation.targets, rows)
        if quantity in ("activation", "weight"):
            flagged &= size > LEARNING * learnt  # while the loss falls fast, both grow because the model learns
        # The latest value is away from the usual one as well: noise alone moves the mean of a few.
        flagged &= (np.abs(deviation.distance) > np.log(factor) / 2) & (size > NOISY * deviation.spread)
        if quantity in ("gradient", "update"):
            # Gradients get smaller as a model learns, and Adam's updates as they agree less: it divides by their size.
            flagged &= deviation.gap > 0
        if quantity in ("weight", "update"):
            flagged &= step.facts.are_matrices(deviation.targets)
        if not flagged.any():
            continue
        known = deviation.warmth >= WARM
        weaker = (size > np.log(factor) / 2) & (np.sign(deviation.gap) == np.sign(np.median(deviation.gap[flagged])))
        together = bool(known.sum() >= 4 and weaker[known].mean() > 0.5)
        order = step.rows(quantity, part).order
        what = "update per learning rate" if part else quantity
        yield from tell(deviation, flagged, quantity, statistic, what, together=together, order=order, part=part)
    yield from _offsets(step, offset, times)


def _offsets(step: Step, share: float, times: float) -> Iterator[Finding]:
    """Activations whose mean drifts, relative to their size: with mixed signs the size hides that for long."""
    mean, size = step.trend("activation", "mean", linear=True, floor=1e-9), step.trend("activation", "rms")
    if mean is None or size is None:
        return
    gap = np.abs(mean.gap) / np.maximum(size.usual, 1e-12)
    is_warm = mean.warmth >= WARM
    was_calm = step.memory.get("drift mean", Calm).update(mean.targets, is_warm & (gap < share / 2.5), CALM)
    flagged = was_calm & is_warm & (gap > share) & (np.abs(mean.gap) > times * mean.usual_gap)
    rows = step.rows("activation").summaries
    flagged &= (rows[:, 0] > 1) & ~step.facts.are_indices(mean.targets, rows)
    # A jump is sudden; other rules report it.
    flagged &= step.memory.get("drift mean leaving", Streak).update(mean.targets, flagged) >= LEAVING
    for index in np.flatnonzero(flagged)[:MOST_TOLD]:
        yield Finding(
            f"mean activation of '{mean.targets[index]}' is drifting: {number(float(mean.values[index]))}, usually "
            f"{number(float(mean.usual[index]))}, with an RMS of {number(float(size.usual[index]))}",
            "activation",
            mean.targets[index],
            float(mean.values[index]),
            "mean",
            low=mean.low(index),
            high=mean.high(index),
            order=float(step.rows("activation").order[index]),
            strength=float(gap[index]),
        )


def _learnt(step: Step) -> float:
    """How far the recent loss is below its long-term mean, as a fraction."""
    if step.loss is None:
        return 0.0
    _, loss = step.loss
    return max(0.0, (loss.slow - loss.fast) / max(abs(loss.usual), 1e-12))
