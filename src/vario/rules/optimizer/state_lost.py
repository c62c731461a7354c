"""An optimizer that lost its state."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Calm

SETTLED = 40
"""Steps after which the optimizers of a loop are known."""


@rule("exact", needs="update setting/", chart="grad_vs_second_moment")
def state_lost(step: Step, known: int = 5) -> Iterator[Finding]:
    """An optimizer that makes an update without the state it had.

    Why: without its second moments Adam moves every weight by the full learning rate, in the direction of the sign of
    one batch's gradient. This happens when an optimizer is recreated, or its state is cleared or not loaded.

    Cause: its optimizer state was cleared or not loaded

    Cause (global): the optimizer's state is gone: the optimizer was recreated, or its state was cleared or not loaded

    Points to: resume 3, optimizer 3

    Next: Check where the optimizer is created and its state loaded (`optimizer.load_state_dict`), and that neither
    happens twice.
    """
    change, health = step.rows("update", "change"), step.rows("update", "grad_vs_second_moment")
    if not len(change) and step.has_new_optimizer and step.number - step.memory.first_step(step.number) >= SETTLED:
        yield Finding(
            "another optimizer makes the updates from this step on: the state of the one before is not used any more",
            "update",
            value=1.0,
            scope="global",
            strength=5.0,
            severity="note",
        )
    if not len(change) or step.was_skipped:
        return
    having = set(health.targets)
    has_state = np.array([name in having for name in change.targets], np.bool_)
    had = step.memory.get("state_lost", Calm).update(change.targets, has_state, known)
    lost = np.flatnonzero(had & ~has_state)
    if not len(lost):
        return
    names = tuple(change.targets[index] for index in lost)
    most = len(names) > len(change) / 2
    yield Finding(
        f"{len(names)} of {len(change)} parameters were updated without their optimizer state, first '{names[0]}'",
        "update",
        None if most else names[0],
        float(len(names)),
        scope="global" if most else "tensor",
        strength=10.0,
        others=names[:16],
        # A loop that creates an optimizer for each stage of training starts without state on purpose.
        severity="note" if step.has_new_optimizer else "page",
    )
