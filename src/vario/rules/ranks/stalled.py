"""Steps that take far too long."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.text import duration
from vario.rules import Finding, Step, rule

LEAST_LEARNT = 1.0
"""Seconds of a step that is always compared with the others; of shorter ones, only one in so many."""
LEARN_EVERY = 8


@rule("exact", needs="step_seconds")
def stalled(step: Step, times: float = 10.0, seconds: float = 60.0) -> Iterator[Finding]:
    """A step that took ten times as long as usual, and at least a minute.

    Why: a rank waits for another, a data loader hangs, or a file system does not respond.

    Cause: a rank, a file system or a worker process that is slow or hung

    Points to: ranks 2, data 1

    Next: Find out what the slowest rank did in that time. Run `vario follow` alongside training: it names the rank
    while it hangs.
    """
    if step.scalars.get("step_seconds", 0.0) < LEAST_LEARNT and step.number % LEARN_EVERY:
        return  # short steps come fast
    found = step.scalar_trend("step_seconds")
    if found is None or found.age < 5:
        return
    took, usual = found.value, found.usual
    if took > max(times * usual, seconds):
        yield Finding(
            f"a step took {duration(took)}, usually {duration(usual)}",
            "scalar",
            "step_seconds",
            took,
            high=times * usual,
            scope="global",
            strength=float(np.log(took / usual)),
        )
