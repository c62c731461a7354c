"""All gradients at another scale, pooled over tensors and steps."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from vario.core.quantities import GRADIENT_NORM
from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.findings import FEW
from vario.rules.api.lasting_shift import lasting_shift, may_have_shifted, remembered

CALM_LOSS = 0.1
"""How far the loss may have moved, as a share of itself: gradients change with it."""
LAST = 1e6
"""What else is found of gradients in the same step says more."""
SPREAD = 0.6
"""How far apart the factors of most gradients may be, as a share of the middle one, in logarithms."""
CALM_RATE = 1.3
"""By what factor the learning rate may have changed in the steps compared."""


NORM_THRESHOLD, NORM_FACTOR = 9.0, 2.0
"""The same of the norm of all gradients, which a few of them decide."""


@rule("relative", needs=f"gradient {GRADIENT_NORM}")
def gradient_scale(step: Step, threshold: float = 6.0, factor: float = 1.6) -> Iterator[Finding]:
    """Gradients that all grow or shrink by a common factor and stay there, while the loss does not change.

    Why: no single gradient leaves its usual range, but together they do. A loss divided by the wrong number,
    micro-steps that are lost, or gradients averaged twice look like this; Adam hides it from every update. The norm of
    all gradients, which is known at every step, has to move further than that of most tensors.

    Cause (global): gradients have another scale: the divisor of the loss, the number of micro-steps that count, how
    ranks are averaged, or the loss scale

    Points to (global): loop 4, precision 1.5, ranks 1, data 1

    Next: Check what the loss is divided by, and whether every micro-step's backward pass still counts.
    """
    yield from _of_norm(step)
    rows = step.rows("gradient")
    matrices = step.facts.are_matrices(rows.targets)
    if matrices.sum() < FEW or step.was_skipped:
        return
    with np.errstate(all="ignore"):
        sizes = np.log(rows.statistic("rms")[matrices])
    middle = float(np.median(sizes))
    if not math.isfinite(middle):
        return
    values = remembered(step.memory, "gradient_scale", middle)
    rates = remembered(step.memory, "gradient_scale rate", step.scalars.get("lr", math.nan))
    size = math.log(factor)
    if not may_have_shifted(values.tolist(), size, 0.0, threshold):
        return
    found = lasting_shift(values, threshold)
    if found is None or abs(found.size) < size or not _is_calm(step, rates) or not _is_common(step, found.size):
        return
    yield Finding(
        f"gradients of most tensors are {number(math.exp(abs(found.size)), 3)} times "
        f"{'larger' if found.size > 0 else 'smaller'} than before and stay so, while the loss does not change",
        "gradient",
        statistic="rms",
        value=found.size,
        scope="global",
        order=LAST,
        strength=abs(found.size),
        since=step.looks_ago("gradient", found.looks_ago + 1),
        others=tuple(name for name, is_matrix in zip(rows.targets, matrices, strict=True) if is_matrix)[:16],
    )


def _of_norm(step: Step) -> Iterator[Finding]:
    """The norm of all gradients at another level, while the loss stays where it is."""
    norm = step.scalars.get(GRADIENT_NORM, 0.0)
    if not 0 < norm < math.inf or step.was_skipped or step.has_nothing_to_learn:
        return
    values = remembered(step.memory, "gradient_scale norm", math.log(norm))
    rates = remembered(step.memory, "gradient_scale norm rate", step.scalars.get("lr", math.nan))
    size = math.log(NORM_FACTOR)
    if step.is_one_of_many or not may_have_shifted(values.tolist(), size, 0.0, NORM_THRESHOLD):
        return
    found = lasting_shift(values, NORM_THRESHOLD)
    if found is None or abs(found.size) < size or step.loss is None or not _is_calm(step, rates):
        return
    yield Finding(
        f"the norm of all gradients is {number(math.exp(abs(found.size)), 3)} times "
        f"{'larger' if found.size > 0 else 'smaller'} than before and stays so, while the loss does not change",
        "gradient",
        statistic="norm",
        value=found.size,
        scope="global",
        order=LAST,
        strength=abs(found.size),
        since=step.number - found.looks_ago,
    )


def _is_common(step: Step, size: float) -> bool:
    """Whether most gradients moved by about the same factor: a module that changed moves them by different ones."""
    deviation = step.trend("gradient", "rms")
    assert deviation is not None
    gaps = deviation.gap[step.facts.are_matrices(deviation.targets)] * math.copysign(1.0, size)
    low, middle, high = np.percentile(gaps, [20, 50, 80])
    return bool(middle > 0 and high - low < SPREAD * middle)


def _is_calm(step: Step, rates: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
    """Whether neither the loss nor the learning rate explains other gradients."""
    known = rates[np.isfinite(rates) & (rates > 0)]
    if step.is_warming_up or (len(known) and known.max() > CALM_RATE * known.min()):
        return False
    if step.loss is None:
        return True
    _, loss = step.loss
    return abs(loss.fast - loss.slow) <= CALM_LOSS * max(abs(loss.slow), 1e-12)
