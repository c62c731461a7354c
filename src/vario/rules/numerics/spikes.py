"""Gradients, activations and updates that leave their past at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.rules import Finding, Step, rule
from vario.rules.api.findings import HUGE, left_the_past, moved_together, tell
from vario.rules.api.series_state import YOUNG


@rule("relative", needs="gradient")
def grad_spike(step: Step, threshold: float = 8.0, factor: float = 3.0) -> Iterator[Finding]:
    """A gradient suddenly several times its usual size, up or down.

    Why: spikes of the loss begin as spikes of single gradients, often of the embedding, a few steps earlier.

    Next: Look at the batch of this step. If spikes come back with other batches, look at the layer named and clip
    gradients (`torch.nn.utils.clip_grad_norm_`).
    """
    deviation = step.trend("gradient", "rms")
    if deviation is None or step.was_skipped:
        return
    size = float(np.log(factor))
    flagged = left_the_past(deviation, threshold, size * (1 + step.is_warming_up))
    together = moved_together(deviation, flagged, size)
    order = step.rows("gradient").order
    yield from tell(deviation, flagged, "gradient", "rms", "gradient", together=together, order=order)


@rule("relative", needs="activation")
def activation_jump(step: Step, threshold: float = 8.0, factor: float = 2.5) -> Iterator[Finding]:
    """An activation suddenly a multiple or a fraction of its usual size.

    Why: activations are the first thing that changes when an input or a weight does; the first module named is where.

    Next: Look at what goes into the first module named: `vario show 'MODULE:input*' --quantity activation --statistic
    rms`. If that jumped too, go on to the module before it; if not, check this module's weights.
    """
    deviation = step.trend("activation", "rms")
    if deviation is None:
        return
    size = float(np.log(factor))
    rows = step.rows("activation")
    # A single number that a model returns is its loss, which others look at.
    flagged = left_the_past(deviation, threshold, size * (1 + step.is_warming_up)) & (rows.summaries[:, 0] > 1)
    order = rows.order
    yield from tell(deviation, flagged, "activation", "rms", "activation", order=order)
    # Squares overflow long before the numbers do: what is beyond them shows in the largest magnitude alone.
    largest = step.trend("activation", "absmax")
    assert largest is not None
    beyond = ~np.isfinite(deviation.values) & np.isfinite(largest.values) & (largest.age >= YOUNG)
    beyond &= largest.distance > np.log(HUGE)
    yield from tell(largest, beyond, "activation", "absmax", "largest magnitude", order=order)


@rule("relative", needs="update")
def update_jump(step: Step, threshold: float = 6.0, factor: float = 2.0) -> Iterator[Finding]:
    """Updates, per unit of learning rate, that are suddenly larger or smaller.

    Why: the learning rate is not what changed, so the optimizer did: its state, its weight decay, its eps.

    Next: Check the optimizer's weight decay, eps and betas. After a resume, check that its state was loaded
    (`optimizer.load_state_dict`).
    """
    deviation = step.trend("update", "max", "pace")
    if deviation is None or step.was_skipped:
        return
    matrices = step.facts.are_matrices(deviation.targets)
    size = float(np.log(factor))
    off = left_the_past(deviation, threshold, size) & matrices
    if moved_together(deviation, off, size, matrices) and off.sum() > matrices.sum() / 2:
        yield from tell(deviation, off, "update", "max", "update per learning rate", together=True)
        return
    alone = left_the_past(deviation, threshold + 2, float(np.log(1.5 * factor)))
    yield from tell(deviation, alone, "update", "max", "update per learning rate", part="pace")
