"""Ranks that are slower than the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.rules import Finding, RanksStep, rule
from vario.rules.api.slow_ranks import WAIT, SlowRank, slow_ranks

CAUSES = {
    WAIT: "its data arrives late: a slow disk or network, too few loader workers, or longer samples than on the others",
    "forward_seconds": "throttled clocks, another process on its device or host, or more work than on the others",
    "backward_seconds": "throttled clocks, another process on its device or host, or more work than on the others",
}


@rule("limit", over="ranks", needs="update_seconds wait_seconds forward_seconds backward_seconds communication")
def straggler(step: RanksStep, share: float = 0.08, seconds: float = 0.005) -> Iterator[Finding]:
    """A rank that the others wait for: slower in its own part of a step, or always last at a collective.

    Why: all ranks wait for the slowest one.

    Cause: a slow host, throttled clocks, or slow data loading

    Points to: hardware 3, data 1, ranks 1

    Next: Check the clocks and other processes on that rank's host, and its data loading: `vario show wait_seconds
    --rank RANK`.
    """
    for slow in slow_ranks(step, share, seconds):
        yield _finding(slow)


def _finding(slow: SlowRank) -> Finding:
    is_part = slow.quantity == "scalar"
    return Finding(
        slow.text,
        slow.quantity,
        slow.target,
        slow.seconds,
        low=None if is_part else slow.usual_seconds,
        high=slow.usual_seconds if is_part else None,
        scope="rank",
        rank=slow.rank,
        strength=float(np.log1p(slow.share or 0.0)),
        since=slow.since,
        cause=CAUSES.get(slow.target, ""),
    )
