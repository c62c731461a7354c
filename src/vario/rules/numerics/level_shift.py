"""Small sudden changes that last."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.rules import Finding, Step, rule
from vario.rules.api.findings import WARM, moved_together, raised, tell
from vario.rules.api.series_state import Streak

LOOKED_AT = (
    ("activation", "", "rms", False),
    ("activation", "", "zeros", True),
    ("attention", "entropy", "mean", True),
    ("gradient", "", "rms", False),
)
"""Quantity, part, statistic, and whether to compare differences instead of ratios."""
SIZES = {"rms": float(np.log(1.3)), "zeros": 0.05, "mean": 0.15}


@rule("relative", needs="activation attention gradient")
def level_shift(step: Step, threshold: float = 10.0, steps: int = 3, growth: float = 0.69) -> Iterator[Finding]:
    """A tensor whose size or share of zeros jumped to another level and stays there.

    Why: a change of a third means little in one step, but if it lasts, something in the code path, the input or the
    weights has changed.

    Cause: its code path, its input or its weights changed at that step

    Cause (global): something all tensors share changed permanently: a scale, a mask, an option

    Points to: module 2, data 1, hardware 0.5

    Points to (global): loop 2, precision 1, data 1

    Next: Look at the first module named and find out what changed at that step. If you have a healthy run, `vario diff
    HEALTHY THIS` shows where the two diverge.
    """
    for quantity, part, statistic, linear in LOOKED_AT:
        floor = {"zeros": 0.003, "mean": 0.01}.get(statistic, 0.02)
        deviation = step.trend(quantity, statistic, part, linear=linear, floor=floor)
        if deviation is None or (quantity == "gradient" and step.was_skipped):
            continue
        size = SIZES[statistic]
        is_far = np.abs(deviation.z) > raised(threshold, growth, len(deviation.targets))
        off = (deviation.warmth >= 1.5 * WARM) & is_far & (np.abs(deviation.distance) > size)
        # Alternating up and down is noise, so each direction has its own streak.
        name = f"level_shift {quantity} {statistic}"
        up = step.memory.get(f"{name} up", Streak).update(deviation.targets, off & (deviation.distance > 0))
        down = step.memory.get(f"{name} down", Streak).update(deviation.targets, off & (deviation.distance < 0))
        held = np.maximum(up, down)
        flagged = held >= steps
        if quantity == "activation":
            rows = step.rows(quantity).summaries
            flagged &= (rows[:, 0] > 1) & ~step.facts.are_indices(deviation.targets, rows)
        if not flagged.any():
            continue
        together = not linear and quantity == "gradient" and moved_together(deviation, flagged, size)
        order = step.rows(quantity, part).order
        what = " ".join(filter(None, (quantity, part or (statistic if linear else ""))))
        yield from tell(
            deviation,
            flagged,
            quantity,
            statistic,
            what,
            together=together,
            order=order,
            part=part,
            since=np.maximum(0, step.number - (held - 1) * step.interval(quantity)),
        )
