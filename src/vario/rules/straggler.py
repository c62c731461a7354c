"""Ranks that are slower than the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.detection.memory import Last, Streak
from vario.rules import Finding, RanksStep, rule
from vario.text import duration

WINDOW = 16


@rule("limit", over="ranks")
def straggler(step: RanksStep, score: float = 0.75, threshold: float = 6.0, size: float = 0.1) -> Iterator[Finding]:
    """A rank that takes longer than the others for its own part of a step.

    Why: all ranks wait for the slowest one.

    Next: that rank's host: its clocks, its other processes, its data loading (`wait_seconds`).
    """
    own = {rank: _own_seconds(step.steps[rank].scalars) for rank in step.ranks}
    ranks = [rank for rank, seconds in own.items() if seconds is not None]
    if len(ranks) < 2:
        return
    medians = np.array([_running_median(step, rank, own[rank] or 0.0) for rank in ranks])
    if np.isnan(medians).any() or medians.min() <= 0:
        return
    middle = float(np.median(medians))
    spread = 1.4826 * float(np.median(np.abs(medians - middle)))
    for rank, seconds in zip(ranks, medians, strict=True):
        others = np.delete(medians, ranks.index(rank))
        is_slow = others.min() / seconds < score and seconds > 1.15 * np.median(others)
        is_apart = len(ranks) > 3 and seconds - middle > max(threshold * spread, size * middle)
        count = step.memory.get("straggler streak", Streak()).update(
            (str(rank),), np.array([bool((is_slow or is_apart) and seconds == medians.max())])
        )[0]
        if count >= WINDOW:
            yield Finding(
                f"rank {rank} takes {duration(float(seconds))} for its part of a step, the others "
                f"{duration(float(np.median(others)))}",
                "scalar",
                "forward_seconds",
                float(seconds),
                high=float(np.median(others)),
                scope="rank",
                rank=rank,
                strength=float(np.log(seconds / middle)),
            )


def _own_seconds(scalars: object) -> float | None:
    found = [scalars[name] for name in ("forward_seconds", "wait_seconds") if name in scalars]  # type: ignore[operator,index]
    return float(sum(found)) if found else None


def _running_median(step: RanksStep, rank: int, seconds: float) -> float:
    """The median of the last few steps; NaN before there are enough."""
    names = tuple(f"{rank}/{place}" for place in range(WINDOW))
    kept = step.memory.get("straggler", Last())
    kept.swap((names[step.number % WINDOW],), np.array([seconds]), step.number)
    values = kept.read("value", names)
    return float(np.median(values)) if not np.isnan(values).any() else float("nan")
