"""Sizes that moved a little, at once, and stay there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.rules import Finding, Step, rule
from vario.rules.api.findings import WARM, moved_together, tell
from vario.rules.api.series_state import Streak

LOOKED_AT = (
    ("activation", "", "rms", False),
    ("activation", "", "zeros", True),
    ("attention", "entropy", "mean", True),
    ("gradient", "", "rms", False),
)
"""Quantity, its part, the statistic, and whether differences count instead of ratios."""
SIZES = {"rms": float(np.log(1.3)), "zeros": 0.05, "mean": 0.15}


@rule("relative", needs="activation attention gradient")
def level_shift(step: Step, threshold: float = 10.0, steps: int = 3) -> Iterator[Finding]:
    """A size, or a share of zeros, that stepped to another level and stays there.

    Why: a change of a third is nothing in one step and everything when it lasts: something in the code path, the input
    or the weights is different since then.

    Next: Look at the first place named, and find out what was changed at that step. If there is a run that was well,
    `vario diff WELL THIS` shows where the two part.
    """
    for quantity, part, statistic, linear in LOOKED_AT:
        floor = {"zeros": 0.003, "mean": 0.01}.get(statistic, 0.02)
        deviation = step.trend(quantity, statistic, part, linear=linear, floor=floor)
        if deviation is None or (quantity == "gradient" and step.was_skipped):
            continue
        size = SIZES[statistic]
        off = (deviation.warmth >= 1.5 * WARM) & (np.abs(deviation.z) > threshold) & (np.abs(deviation.distance) > size)
        # Up and down in turn is noise, so each direction has its own streak.
        name = f"level_shift {quantity} {statistic}"
        up = step.memory.get(f"{name} up", Streak()).update(deviation.targets, off & (deviation.distance > 0))
        down = step.memory.get(f"{name} down", Streak()).update(deviation.targets, off & (deviation.distance < 0))
        held = np.maximum(up, down)
        flagged = held >= steps
        if quantity == "activation":
            flagged &= step.rows(quantity).summaries[:, 0] > 1
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
            since=step.number - held + 1,
        )
