"""Slow departures."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.quantities import LOSSES
from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.findings import MOST_TOLD, WARM, tell
from vario.rules.api.series_state import Calm, Streak

LEARNING = 3.0
"""How much faster than the loss falls weights and activations may grow."""
LEAVING = 4
CALM = 20
"""Observations in a row without a departure."""


@rule("relative", needs=" ".join(("activation", "weight", "gradient", "update", *LOSSES)))
def drift(
    step: Step,
    activation: float = 2.0,
    weight: float = 1.4,
    gradient: float = 4.0,
    update: float = 3.0,
    offset: float = 0.6,
    times: float = 2.5,
) -> Iterator[Finding]:
    """A size that has been leaving its long mean for some steps, and faster than it usually does.

    Why: growth by a few per cent a step passes every test for spikes and ends in overflow all the same.

    Next: Find out what the named tensors share: a layer, an optimizer option, a loss term that is missing. See with
    `vario show NAME` when it began.
    """
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
        # What moves from the start on, as a bias that begins at zero, is learning; drift begins after a calm.
        calm = step.memory.get(f"drift {quantity}", Calm())
        is_calm = (deviation.warmth >= WARM) & (size < np.log(factor) / 2) & (not step.is_warming_up)
        was_calm = calm.update(deviation.targets, is_calm, CALM)
        flagged = was_calm & (deviation.warmth >= WARM) & (size > np.log(factor)) & (size > times * deviation.usual_gap)
        flagged &= np.sign(deviation.gap) == np.sign(deviation.distance)
        if quantity == "activation":
            flagged &= step.rows(quantity).summaries[:, 0] > 1  # a single number is a loss
        if quantity in ("activation", "weight"):
            flagged &= size > LEARNING * learnt  # while the loss falls fast, both grow because the model learns
        if quantity == "gradient":
            flagged &= deviation.gap > 0  # gradients get smaller as a model learns
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
    """Activations whose mean leaves, by a share of their size: a size that is made of many signs hides that long."""
    mean, size = step.trend("activation", "mean", linear=True, floor=1e-9), step.trend("activation", "rms")
    if mean is None or size is None:
        return
    gap = np.abs(mean.gap) / np.maximum(size.usual, 1e-12)
    is_warm = mean.warmth >= WARM
    was_calm = step.memory.get("drift mean", Calm()).update(mean.targets, is_warm & (gap < share / 2.5), CALM)
    flagged = was_calm & is_warm & (gap > share) & (np.abs(mean.gap) > times * mean.usual_gap)
    flagged &= step.rows("activation").summaries[:, 0] > 1
    # What jumps has left at once; other rules tell that.
    flagged &= step.memory.get("drift mean leaving", Streak()).update(mean.targets, flagged) >= LEAVING
    for index in np.flatnonzero(flagged)[:MOST_TOLD]:
        yield Finding(
            f"mean of activation of '{mean.targets[index]}' is leaving: {number(float(mean.values[index]))}, usually "
            f"{number(float(mean.usual[index]))}, of a size of {number(float(size.usual[index]))}",
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
    """The share by which the loss of the last few steps is below that of many."""
    if step.loss is None:
        return 0.0
    _, loss = step.loss
    return max(0.0, (loss.slow - loss.fast) / max(abs(loss.usual), 1e-12))
