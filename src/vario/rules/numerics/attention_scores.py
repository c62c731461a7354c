"""Attention logits and entropy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.findings import WARM, left_the_past
from vario.rules.api.series_state import Calm, Streak


@rule("limit", needs="attention", chart="max_logit")
def attn_logit(
    step: Step, limit: float = 100.0, growth: float = 2.0, least: float = 10.0, threshold: float = 8.0
) -> Iterator[Finding]:
    """Attention logits that are very large or have doubled.

    Why: runs whose logits exceed a thousand diverge, and the growth begins thousands of steps before the loss shows it.

    Cause: the query or key weights, or their input, grew

    Points to: module 2, schedule 2, precision 1

    Next: Check whether the query and key projections of this module grow: `vario show 'MODULE*' --quantity weight`. If
    they do, add QK normalisation, clip the logits, or lower their learning rate.
    """
    deviation = step.trend("attention", "max", "max_logit")
    if deviation is None:
        return
    rows = step.rows("attention", "max_logit")
    size = float(np.log(growth))
    is_over = deviation.values > limit
    jumped = left_the_past(deviation, threshold, size, warm=20) & (deviation.distance > 0)
    is_calm = (deviation.age > 8) & (np.abs(deviation.gap) < size / 3) & (not step.is_warming_up)
    was_calm = step.memory.get("attn_logit", Calm).update(deviation.targets, is_calm, 20)
    grows = was_calm & (deviation.gap > 0.75 * size) & (deviation.gap > 2.5 * deviation.usual_gap)
    is_steep = (deviation.gap > size) & (deviation.values > 3 * least) & (not step.is_warming_up)
    for index in np.flatnonzero(is_over | is_steep | ((jumped | grows) & (deviation.values > least)))[:16]:
        yield Finding(
            f"largest attention logit of '{rows.targets[index]}' is {number(deviation.values[index])}"
            + ("" if is_over[index] else f", usually {number(deviation.usual[index])}"),
            "attention",
            rows.targets[index],
            deviation.values[index],
            "max",
            high=limit if is_over[index] else deviation.high(int(index)),
            order=float(rows.order[index]),
            strength=float(np.log(deviation.values[index] / max(deviation.usual[index], 1.0))),
            # Logits grow while a model learns what to attend to.
            severity="warn" if is_over[index] else "note",
        )


@rule("limit", needs="attention", chart="head_entropy entropy")
def attn_entropy(step: Step, limit: float = 0.02, share: float = 0.6, threshold: float = 6.0) -> Iterator[Finding]:
    """Attention heads that collapse onto one key.

    Why: a collapsed head passes no gradient to its queries and keys, and collapse often comes with loss spikes.

    Cause: the logits are so large that softmax saturates

    Points to: module 2, schedule 2, precision 1

    Next: Look at the logits of the same module: `vario show 'MODULE:max_logit' --quantity attention --statistic max`.
    If they grow, lower the learning rate of its projections or add QK normalisation.
    """
    rows = step.rows("attention", "head_entropy")
    deviation = step.trend("attention", "min", "head_entropy", linear=True, floor=0.01)
    middle = step.trend("attention", "mean", "head_entropy", linear=True, floor=0.01)
    if deviation is None or middle is None:
        return
    fell = (
        (deviation.warmth >= WARM)
        & (deviation.z < -threshold)
        & (deviation.values < share * deviation.usual)
        & (-deviation.distance > 1.5 * deviation.peak)
        & (deviation.usual > 0.1)
    )
    fell |= (middle.warmth >= 20) & (middle.values < limit)
    count = step.memory.get("attn_entropy", Streak).update(rows.targets, fell)
    for index in np.flatnonzero(count >= 2)[:16]:
        yield Finding(
            f"a head of '{rows.targets[index]}' has {number(deviation.values[index], 3)} of the maximum "
            f"entropy, usually {number(deviation.usual[index], 3)}",
            "attention",
            rows.targets[index],
            deviation.values[index],
            "min",
            deviation.low(int(index)),
            deviation.high(int(index)),
            order=float(rows.order[index]),
            strength=float(deviation.usual[index] - deviation.values[index]),
        )
