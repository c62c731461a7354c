"""An optimizer whose eps is larger than what it is added to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Streak


@rule("limit", needs="update")
def eps_dominates(step: Step, limit: float = 0.5, steps: int = 3) -> Iterator[Finding]:
    """Adam's eps outweighs the gradients it should only guard against zero.

    Why: the step is then no longer scaled to the gradient: small gradients hardly move their weights.

    Next: Lower the optimizer's `eps` (1e-15 is safe in float32). Otherwise find out why gradients are that small:
    `vario show '*' --quantity gradient --statistic rms`.
    """
    rows = step.rows("update", "eps_share")
    shares = rows.statistic("max")[step.facts.are_matrices(rows.targets)]
    shares = shares[np.isfinite(shares)]
    if not len(shares):
        return
    middle = float(np.median(shares))
    count = step.memory.get("eps_dominates", Streak()).update(("all",), np.array([middle > limit]))[0]
    if count >= steps and step.number >= 5:
        yield Finding(
            f"eps is {number(middle, 3)} times the root of the second moment (median of {len(shares)} matrices)",
            "update",
            statistic="eps_share",
            value=middle,
            high=limit,
            scope="global",
            strength=float(np.log(middle / limit)),
            since=step.number - int(count) + 1,
        )
