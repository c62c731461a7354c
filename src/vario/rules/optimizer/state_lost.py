"""An optimizer that has forgotten."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Calm


@rule("exact", needs="update")
def state_lost(step: Step, known: int = 5) -> Iterator[Finding]:
    """An optimizer that updates without the state it had.

    Why: without its second moments Adam moves every weight by the full learning rate, in the direction of one batch's
    sign. It happens when an optimizer is made anew, or its state is cleared or not loaded.

    Next: Check where the optimizer is made and its state loaded (`optimizer.load_state_dict`), and that neither happens
    a second time.
    """
    change, surprise = step.rows("update", "change"), step.rows("update", "surprise")
    if not len(change) or step.was_skipped:
        return
    having = set(surprise.targets)
    has_state = np.array([name in having for name in change.targets], np.bool_)
    had = step.memory.get("state_lost", Calm()).update(change.targets, has_state, known)
    lost = np.flatnonzero(had & ~has_state)
    if not len(lost):
        return
    names = tuple(change.targets[index] for index in lost)
    most = len(names) > len(change) / 2
    yield Finding(
        f"{len(names)} of {len(change)} parameters were updated without the optimizer state they had, as '{names[0]}'",
        "update",
        None if most else names[0],
        float(len(names)),
        scope="global" if most else "tensor",
        strength=10.0,
        others=names[:16],
        # A loop that makes an optimizer for each stage of a training means to begin without state.
        severity="note" if step.has_new_optimizer else "page",
    )
