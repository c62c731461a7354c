"""Gradients that stand still."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.records import COUNT, MAX, MIN, SUM, SUM_SQUARES
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Last, Longest, Streak

COMPARED = (SUM, SUM_SQUARES, MIN, MAX)
ENOUGH = 16
"""The fewest elements of a gradient that never repeats by chance."""
VARIED = 10
"""Looks in which a gradient must have differed from the one before: one that never varies is a constant of the loss."""


@rule("exact", needs="gradient")
def stuck_gradient(step: Step, steps: int = 4) -> Iterator[Finding]:
    """A gradient that is bit-identical in several steps, although it always varied before.

    Why: two batches never give the same gradient. Either its buffer is no longer written, or the same batch is used
    while no weight moves.

    Cause: the gradient of this parameter is no longer computed: the optimizer gets an old one

    Cause (global): every step computes the same: the batch repeats and no weight moves

    Points to: module 2, loop 2, hardware 1

    Points to (global): data 2, loop 2, schedule 1

    Next: Check who writes this gradient: a hook, a captured graph, a fused buffer, an offloaded copy. If no gradient
    changes, check the learning rate and the loader.
    """
    rows = step.rows("gradient")
    if not len(rows) or step.was_skipped or step.interval("gradient") > 1:
        return
    now = rows.summaries[:, list(COMPARED)]
    is_same = np.ones(len(rows), np.bool_)
    for place, column in enumerate(COMPARED):
        last = step.memory.get(f"stuck_gradient {column}", Last)
        before, _ = last.swap(rows.targets, now[:, place], step.number)
        is_same &= before == now[:, place]
    # A few numbers may well come twice: a hinge loss counts rows.
    is_same &= (rows.summaries[:, SUM_SQUARES] > 0) & (rows.summaries[:, COUNT] >= ENOUGH)
    varied = step.memory.get("stuck_gradient varied", Streak).update(rows.targets, ~is_same)
    longest = step.memory.get("stuck_gradient longest", Longest).update(rows.targets, varied)
    count = step.memory.get("stuck_gradient", Streak).update(rows.targets, is_same)
    at = np.flatnonzero((count >= steps - 1) & (longest >= VARIED))
    if len(at) == len(rows) > 3:
        yield Finding(
            f"all gradients have been the same for {int(count.min()) + 1} steps",
            "gradient",
            scope="global",
            strength=1e6,
            since=step.number - int(count.min()),
            severity="warn",
        )
        return
    for index in at[:16]:
        yield Finding(
            f"gradient of '{rows.targets[index]}' has been the same to the last bit for {int(count[index]) + 1} steps",
            "gradient",
            rows.targets[index],
            float(np.sqrt(now[index, 1])),
            "norm",
            order=float(rows.order[index]),
            strength=1e3,
            since=step.number - int(count[index]),
            severity="warn",
        )
