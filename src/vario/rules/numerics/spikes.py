"""Sudden changes of gradients, activations and updates."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.rules import Finding, Step, rule
from vario.rules.api.alerts import GRADIENT_DROP
from vario.rules.api.findings import HUGE, left_the_past, moved_together, raised, tell
from vario.rules.api.series_state import YOUNG, Deviation, Flags, Last, Streak, Values

ENOUGH = 16
"""The fewest elements of a parameter whose updates are judged alone."""
SMALL = 3
"""Observations in a row after which gradients that became small count as a change."""


@rule("relative", needs="gradient")
def grad_spike(step: Step, threshold: float = 6.5, factor: float = 3.0, growth: float = 1.0) -> Iterator[Finding]:
    """A gradient that is suddenly several times larger than usual, or smaller: a gradient drop.

    Why: a loss spike often starts a few steps earlier as a spike of one gradient, often the embedding's. After a drop,
    the layer hardly learns.

    Cause: the gradient changed at this layer: an unusual batch, or a layer that becomes unstable (larger)
    or saturates (smaller)

    Cause (global): all gradients moved together: the loss scale, how the loss or the micro-steps are averaged,
    gradients that are not zeroed, or an unusual batch

    Points to: data 1.5, module 1.5, schedule 1

    Points to (global): loop 2, data 2, precision 1

    Points to (batch): data 3

    Next: Look at the batch of this step. If it recurs with other batches, look at the layer named; clip gradients that
    grow (in PyTorch: `torch.nn.utils.clip_grad_norm_`).
    """
    deviation = step.trend("gradient", "rms")
    if deviation is None or step.was_skipped:
        return
    size = float(np.log(factor))
    threshold = raised(threshold, growth, len(deviation.targets))
    flagged = left_the_past(deviation, threshold, size * (1 + step.is_warming_up))
    flagged, since = _unless_small_once(step, deviation, flagged, size)
    together = moved_together(deviation, flagged, size)
    order = step.rows("gradient").order
    yield from tell(
        deviation,
        flagged,
        "gradient",
        "rms",
        "gradient",
        together=together,
        order=order,
        since=since,
        drop=GRADIENT_DROP,
    )


def _unless_small_once(step: Step, deviation: Deviation, flagged: Flags, size: float) -> tuple[Flags, Values]:
    """Drop gradients that are small for once: the errors of a batch may cancel out. A change lasts.

    Also return since when.
    """
    is_down = deviation.distance < 0
    fell = step.memory.get("grad_spike fell", Streak)
    goes_on = (fell.read("count", deviation.targets) > 0) & (deviation.distance < -size)
    count = fell.update(deviation.targets, (flagged & is_down) | goes_on)
    began = step.memory.get("grad_spike began", Last)
    rows = began.at(deviation.targets)
    began["step"][rows] = np.where(count == 1, step.number, began["step"][rows])
    has_fallen = is_down & (count == SMALL)
    return (flagged & ~is_down) | has_fallen, np.where(has_fallen, began["step"][rows], step.number)


@rule("relative", needs="activation")
def activation_jump(step: Step, threshold: float = 8.0, factor: float = 2.5) -> Iterator[Finding]:
    """An activation that is suddenly a multiple or a fraction of its usual size.

    Why: activations change first when an input or a weight changes; the first module named is where it happened.

    Cause: the output of this module changed suddenly: its weights, its input, or its code path

    Cause (global): what goes into the model changed, or all weights did

    Points to: module 2, data 1, hardware 1

    Points to (batch): data 4

    Next: Look at the input of the first module named: `vario show 'MODULE:input*' --quantity activation --statistic
    rms`. If it jumped too, check the module before it; if not, check this module's weights.
    """
    deviation = step.trend("activation", "rms")
    if deviation is None:
        return
    size = float(np.log(factor))
    rows = step.rows("activation")
    # A single number that a model returns is its loss, which other rules check.
    flagged = left_the_past(deviation, threshold, size * (1 + step.is_warming_up)) & (rows.summaries[:, 0] > 1)
    flagged &= ~step.facts.are_indices(rows.targets, rows.summaries)
    order = rows.order
    yield from tell(deviation, flagged, "activation", "rms", "activation", order=order)
    # Squares overflow long before the values do: beyond that only the largest magnitude shows it.
    largest = step.trend("activation", "absmax")
    assert largest is not None
    beyond = ~np.isfinite(deviation.values) & np.isfinite(largest.values) & (largest.age >= YOUNG)
    beyond &= largest.distance > np.log(HUGE)
    yield from tell(largest, beyond, "activation", "absmax", "largest magnitude", order=order)


@rule("relative", needs="update")
def update_jump(step: Step, threshold: float = 6.0, factor: float = 2.0) -> Iterator[Finding]:
    """Updates that are suddenly larger per unit of learning rate.

    Why: the learning rate did not change, so the optimizer did: its state, weight decay or eps.

    Cause: the optimizer updates this parameter differently than before: its state or its param group changed

    Cause (global): the optimizer changed: its state, weight decay, eps or betas (the learning rate is accounted for)

    Points to: optimizer 3, resume 1

    Next: Check the optimizer's weight decay, eps and betas. After a resume, check that its state was loaded
    (`optimizer.load_state_dict`).
    """
    deviation = step.trend("update", "max", "pace")
    if deviation is None or step.was_skipped:
        return
    matrices = step.facts.are_matrices(deviation.targets)
    size = float(np.log(factor))
    off = left_the_past(deviation, threshold, size) & matrices
    off &= deviation.distance > 0  # updates get smaller as a model learns
    if moved_together(deviation, off, size, matrices) and off.sum() > matrices.sum() / 2:
        yield from tell(deviation, off, "update", "max", "update per learning rate", together=True)
        return
    alone = left_the_past(deviation, threshold + 2, float(np.log(1.5 * factor)))
    # A few numbers, such as the bias of a single output, move as their errors happen to add up.
    alone &= (deviation.distance > 0) & step.facts.are_larger(deviation.targets, ENOUGH)
    yield from tell(deviation, alone, "update", "max", "update per learning rate", part="pace")
