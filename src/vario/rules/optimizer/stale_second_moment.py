"""Gradients that do not match the optimizer's second moment."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from vario.core.records import COUNT, MAX, SUM, SUM_SQUARES
from vario.rules import Finding, Step, rule
from vario.rules.api.findings import left_the_past, moved_together, tell
from vario.rules.api.series_state import Last

INVOLVED = 0.05
"""The share of a parameter's elements that must have a part in it."""
NEW = 20
"""Steps in which an optimizer counts as new."""


@rule("limit", needs="update setting/", chart="grad_vs_second_moment")
def stale_second_moment(step: Step, limit: float = 2.3, threshold: float = 8.0) -> Iterator[Finding]:
    """Gradients far above what Adam's second moment predicts.

    Why: Adam divides by the past size of gradients. If that is out of date, its updates are many times too large, and a
    loss spike follows within a few steps.

    Cause: the optimizer's second moment of this parameter is out of date or was lost

    Cause (global): the optimizer's second moment does not match the gradients: its state was lost or is out of date, or
    the batch is unusual

    Points to: optimizer 2, data 1

    Points to (global): optimizer 2, resume 2, data 1

    Next: Look at the batch of this step; after a resume, check that the optimizer's state was loaded. If it happens
    again, lower beta2.
    """
    if not step.has_new_optimizer and "update" not in step.quantities:
        return
    renewed = step.memory.get("stale_second_moment renewed", Last)
    row = renewed.row("step")
    if step.has_new_optimizer or math.isnan(renewed["value"].item(row)):
        renewed["value"][row] = step.number
    if step.number - renewed["value"].item(row) < NEW:
        return  # a new optimizer has yet to learn its second moments
    deviation = step.trend("update", "mean", "grad_vs_second_moment", floor=0.1)
    if deviation is None:
        return
    flagged = left_the_past(deviation, threshold, np.log(5.0), warm=20) & (deviation.values > limit**2)
    # With a zero moment any gradient is unexpected: such a series has no usual value.
    flagged &= (deviation.distance > 0) & (deviation.spread < 1)
    flagged &= step.facts.are_matrices(deviation.targets)
    # A few elements that were inactive for long and get a gradient again, as those of a unit that fires for the first
    # time, say nothing about the others.
    rows = step.rows("update", "grad_vs_second_moment")
    flagged &= rows.summaries[:, MAX] < rows.summaries[:, SUM] / 2
    with np.errstate(all="ignore"):
        num_involved = rows.summaries[:, SUM] ** 2 / rows.summaries[:, SUM_SQUARES]
    flagged &= ~(num_involved < INVOLVED * rows.summaries[:, COUNT])
    together = moved_together(deviation, flagged, np.log(3.0))
    if not together:
        # Rows of an embedding that are used for the first time, or seldom, have hardly any second moment.
        flagged &= ~step.facts.are_embeddings(deviation.targets)
    what = "squared gradient over second moment"
    yield from tell(deviation, flagged, "update", "mean", what, together=together, part="grad_vs_second_moment")
