"""Units that never fire."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Streak

NEARLY_ALL = 0.9
"""The share of silent units at which a layer hardly passes anything on."""
LEAVING = 0.2
"""How far below the limit the share must fall to be told again: it differs from batch to batch."""


@rule("limit", needs="unit", chart="dead")
def dead_units(step: Step, limit: float = 0.6, steps: int = 2) -> Iterator[Finding]:
    """A layer in which most units output zero for a whole batch.

    Why: a unit that never fires gets no gradient and does not recover.

    Cause: the bias or the input of the layer is too low

    Points to: module 2, schedule 1.5

    Next: Check the bias in front of the layer, and whether its input is normalised. If all units died in one step,
    lower the learning rate or lengthen its warm-up.
    """
    rows = step.rows("unit", "dead")
    if not len(rows):
        return
    shares = rows.statistic("mean")
    streak = step.memory.get("dead_units", Streak)
    was_told = streak.read("count", rows.targets) >= steps
    count = streak.update(rows.targets, shares > np.where(was_told, limit - LEAVING, limit))
    for index in np.flatnonzero(count >= steps)[:16]:
        yield Finding(
            f"{number(100 * shares[index], 3)} % of the units of '{rows.targets[index]}' are zero for the whole batch",
            "unit",
            rows.targets[index],
            shares[index],
            high=limit,
            order=float(rows.order[index]),
            strength=float(shares[index]),
            # A layer learns with a third of its units: batches of little variety leave many silent.
            severity="warn" if shares[index] > NEARLY_ALL else "note",
        )
