"""An optimizer eps larger than the value it is added to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Streak


@rule("limit", needs="update")
def eps_dominates(step: Step, limit: float = 0.5, steps: int = 3, first_step: int = 30) -> Iterator[Finding]:
    """Adam's eps outweighs the gradients, although it should only prevent a division by zero.

    Why: the update is no longer normalised by the gradient's size, so small gradients hardly move their weights. Layers
    that start at zero let hardly any gradient through at first, so the first steps do not count.

    Cause: the optimizer's eps is too large, or gradients are tiny

    Points to: optimizer 4, precision 1

    Next: Lower the optimizer's `eps` (1e-15 is safe in float32). Otherwise find out why gradients are so small: `vario
    show '*' --quantity gradient --statistic rms`.
    """
    rows = step.rows("update", "eps_share")
    shares = rows.statistic("max")[step.facts.are_matrices(rows.targets)]
    shares = shares[np.isfinite(shares)]
    if not len(shares):
        return
    middle = float(np.median(shares))
    count = step.memory.get("eps_dominates", Streak).update(("all",), np.array([middle > limit]))[0]
    if count >= steps and step.number - step.memory.first_step(step.number) >= first_step:
        yield Finding(
            f"eps is {number(middle, 3)} times the root of the second moment (median of {len(shares)} matrices)",
            "update",
            statistic="eps_share",
            value=middle,
            high=limit,
            scope="global",
            strength=float(np.log(middle / limit)),
            since=step.looks_ago("update", int(count)),
        )
