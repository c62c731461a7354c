"""Slow departures."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.detection.memory import Calm
from vario.detection.telling import WARM, tell
from vario.rules import Finding, Step, rule

LEARNS = 0.1
"""The share of the loss by which it falls over some fifty steps while a model learns fast."""
CALM = 20
"""Observations in a row without a departure."""


@rule("relative")
def drift(
    step: Step,
    activation: float = 2.5,
    weight: float = 1.3,
    gradient: float = 4.0,
    update: float = 3.0,
    times: float = 2.5,
) -> Iterator[Finding]:
    """A size that has been leaving its long mean for some steps, and faster than it usually does.

    Why: growth by a few per cent a step passes every test for spikes and ends in overflow all the same.

    Next: what the named tensors share: a layer, an optimizer option, a loss term that is missing.
    """
    learning = _learns(step)
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
            # A single number is a loss; and while the loss falls fast, activations grow because the model learns.
            flagged &= (step.rows(quantity).summaries[:, 0] > 1) & (not learning)
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


def _learns(step: Step) -> bool:
    """Whether the loss is falling fast: its mean of a few steps is far below that of many."""
    loss = step.scalar_trend("loss", linear=True, floor=1e-6)
    return loss is not None and bool(-loss.gap[0] > LEARNS * abs(loss.usual[0]))
