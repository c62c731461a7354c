"""Weights that something other than the optimizer changed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.detection.memory import Last, Streak
from vario.rules import Finding, Step, rule
from vario.text import number


@rule("exact")
def unexplained_change(step: Step, clean_steps: int = 5) -> Iterator[Finding]:
    """A weight that changed while no optimizer ran.

    Why: nothing else may change it: memory that was corrupted, a checkpoint loaded half way, code that writes weights.
    What the loop does to weights after every update, as clipping them, is known from its first steps and passed over.

    Next: what ran between the two updates; on one rank alone, that rank's device.
    """
    rows = step.rows("stray")
    watched = step.memory.get("unexplained_change", Last())
    begun = watched.read("value", ("begun",))[0]
    if np.isnan(begun):
        watched.swap(("begun",), np.array([float(step.number)]), step.number)
        begun = float(step.number)
    if not len(rows):
        return
    # Streaks of clean steps cannot be counted for rows that are only there when something is wrong: the first
    # appearance decides, so a weight that is changed from the beginning on is changed on purpose.
    late = step.number - begun >= clean_steps
    habit = step.memory.get("unexplained_change habit", Streak())
    by_design = habit.update(rows.targets, np.full(len(rows), not late) | (habit.read("count", rows.targets) > 0))
    flagged = np.flatnonzero(by_design == 0)
    sizes = rows.statistic("absmax")
    share = len(flagged) / max(1, len(step.facts.trainable) or len(rows))
    for index in flagged[np.argsort(-sizes[flagged])][:16]:
        changed = int(rows.summaries[index, 0] - rows.summaries[index, 7])
        yield Finding(
            text=f"'{rows.targets[index]}' changed by up to {number(sizes[index])} between two updates "
            f"({changed} of {int(rows.summaries[index, 0])} sampled elements)",
            quantity="stray",
            target=rows.targets[index] if share <= 0.5 or len(flagged) < 4 else None,
            statistic="absmax",
            value=sizes[index],
            scope="tensor" if share <= 0.5 or len(flagged) < 4 else "global",
            order=float(index),
            strength=sizes[index],
            others=tuple(rows.targets[other] for other in flagged[:16]),
        )
        if share > 0.5 and len(flagged) >= 4:
            return
