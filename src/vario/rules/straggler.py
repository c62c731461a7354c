"""Ranks that are slower than the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.detection.memory import Last, Streak, Values
from vario.rules import Finding, RanksStep, rule
from vario.text import duration

WINDOW = 16
"""Steps whose median counts, and for which a rank must stay behind."""
OWN = {"forward_seconds": (1.12, 0.06), "wait_seconds": (1.5, 0.15)}
"""What a rank spends by itself; from which ratio to the others it counts, and from which share of a step they lose.
What a loop does between steps varies more than what a model computes."""


@rule("limit", over="ranks")
def straggler(step: RanksStep, score: float = 0.75, threshold: float = 6.0) -> Iterator[Finding]:
    """A rank that takes longer than the others for its own part of a step.

    Why: all ranks wait for the slowest one.

    Next: Check the clocks and other processes of that rank's host, and its data loading: `vario show wait_seconds
    --rank N`.
    """
    for name, (ratio, share) in OWN.items():
        ranks = [rank for rank in step.ranks if name in step.steps[rank].scalars]
        if len(ranks) < 2:
            continue
        medians = _medians(step, name, ranks)
        if np.isnan(medians).any() or medians.min() <= 0:
            continue
        slowest = int(np.argmax(medians))
        others = np.delete(medians, slowest)
        usual, most = float(np.median(others)), float(medians[slowest])
        spread = 1.4826 * float(np.median(np.abs(others - usual)))
        whole = float(np.median([step.steps[rank].scalars.get("step_seconds", np.nan) for rank in ranks]))
        is_slow = others.min() / most < score or (len(ranks) > 3 and most - usual > threshold * spread)
        matters = most > ratio * usual and not most - usual < share * whole
        is_off = np.arange(len(ranks)) == (slowest if is_slow and matters else -1)
        count = step.memory.get(f"straggler {name}", Streak()).update(tuple(map(str, ranks)), is_off)
        if count[slowest] >= 1.5 * WINDOW:
            yield Finding(
                f"rank {ranks[slowest]} takes {duration(most)} for its part of a step ({name}), the others "
                f"{duration(usual)}",
                "scalar",
                name,
                most,
                high=usual,
                scope="rank",
                rank=ranks[slowest],
                strength=float(np.log(most / usual)),
                since=step.number - int(count[slowest]) + 1,
            )


def _medians(step: RanksStep, name: str, ranks: list[int]) -> Values:
    """Each rank's median of the last few steps; NaN before there are enough."""
    kept = step.memory.get("straggler", Last())
    now = tuple(f"{rank}/{name}/{step.number % WINDOW}" for rank in ranks)
    kept.swap(now, np.array([step.steps[rank].scalars[name] for rank in ranks]), step.number)
    places = [f"{rank}/{name}/{place}" for rank in ranks for place in range(WINDOW)]
    values = kept.read("value", places).reshape(len(ranks), WINDOW)
    found: Values = np.median(values, axis=1)
    return found
