"""Gradients that the optimizer's second moment does not expect."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.records import MAX, SUM
from vario.rules import Finding, Step, rule
from vario.rules.api.findings import left_the_past, moved_together, tell


@rule("limit", needs="update")
def stale_second_moment(step: Step, limit: float = 2.3, threshold: float = 8.0) -> Iterator[Finding]:
    """Gradients far above what Adam's second moment stands for.

    Why: Adam divides by what gradients used to be. Where that is out of date, its step is many times too large; loss
    spikes follow within a few steps.

    Next: Look at the batch of this step; after a resume, check that the optimizer's state was loaded. If it comes
    again, lower beta2.
    """
    deviation = step.trend("update", "mean", "surprise", floor=0.1)
    if deviation is None:
        return
    flagged = left_the_past(deviation, threshold, np.log(5.0), warm=20) & (deviation.values > limit**2)
    # A moment that is zero makes any gradient a surprise: such a series has no habit to leave.
    flagged &= (deviation.distance > 0) & (deviation.spread < 1)
    flagged &= step.facts.are_matrices(deviation.targets)
    # A single element that was silent for long and speaks again is no sign of the others.
    rows = step.rows("update", "surprise")
    flagged &= rows.summaries[:, MAX] < rows.summaries[:, SUM] / 2
    together = moved_together(deviation, flagged, np.log(3.0))
    what = "squared gradient over second moment"
    yield from tell(deviation, flagged, "update", "mean", what, together=together, part="surprise")
