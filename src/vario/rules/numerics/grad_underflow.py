"""Gradients that vanish into zeros."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.text import number
from vario.rules import Finding, Rows, Step, rule
from vario.rules.api.findings import WARM
from vario.rules.api.series_state import Flags, Streak


@rule("limit", needs="gradient")
def grad_underflow(
    step: Step, points: float = 0.02, threshold: float = 6.0, share: float = 0.5, steps: int = 3
) -> Iterator[Finding]:
    """More and more zeros among the gradients of a matrix.

    Why: what is below the smallest number of the dtype is zero, and teaches nothing. In most matrices at once it is the
    loss scale; in one it is a layer going silent. Gradients far above the smallest number of their dtype have zeros
    from units that do not fire: that is only noted.

    Next: Raise the loss scale (`init_scale` of `GradScaler`), or run the backward pass in bfloat16. If one layer alone
    is named, look at its activations: `vario show 'LAYER:*' --quantity activation --statistic zeros`.
    """
    deviation = step.trend("gradient", "zeros", linear=True, floor=0.003)
    if deviation is None or step.was_skipped:
        return
    rows = step.rows("gradient")
    matrices = step.facts.are_matrices(rows.targets)
    known = matrices & (deviation.warmth >= 20)
    rose = (
        known & (deviation.distance > points) & (deviation.z > threshold) & (deviation.distance > 1.5 * deviation.peak)
    )
    most = rose.sum() > 1 and rose.sum() > known.sum() / 2
    if most:
        yield Finding(
            f"zeros among the gradients rose in {int(rose.sum())} of {int(known.sum())} matrices",
            "gradient",
            statistic="zeros",
            value=float(np.median(deviation.values[rose])),
            high=float(np.median(deviation.usual[rose])),
            scope="global",
            strength=float(deviation.distance[rose].max()) * 10,
            others=tuple(rows.targets[index] for index in np.flatnonzero(rose)[:16]),
            severity="warn" if _is_near_the_smallest(step, rows, rose) else "note",
        )
        return
    silent = rose & (deviation.values > share) & (deviation.usual < share / 2) & (deviation.warmth >= WARM)
    count = step.memory.get("grad_underflow", Streak()).update(rows.targets, silent)
    for index in np.flatnonzero(count >= steps)[:16]:
        yield Finding(
            f"{number(100 * deviation.values[index], 3)} % of the gradient of '{rows.targets[index]}' are zero, "
            f"usually {number(100 * deviation.usual[index], 3)} %",
            "gradient",
            rows.targets[index],
            deviation.values[index],
            "zeros",
            deviation.low(int(index)),
            deviation.high(int(index)),
            order=float(rows.order[index]),
            strength=float(deviation.distance[index]) * 5,
            since=step.number - int(count[index]) + 1,
        )


HALF, SINGLE = 1e-3, 1e-30
"""Below these sizes a share of a gradient's elements may round to zero: float16 ends at 6e-8, the others at 1e-38."""


def _is_near_the_smallest(step: Step, rows: Rows, chosen: Flags) -> bool:
    """Whether these gradients are so small that their elements may round to zero."""
    dtypes = {step.facts.dtypes.get(rows.targets[index], "").removeprefix("torch.") for index in np.flatnonzero(chosen)}
    # A loss scaler is there because something is computed in float16.
    is_half = "float16" in dtypes or "skipped_step" in step.scalars
    return bool(np.median(rows.statistic("rms")[chosen]) < (HALF if is_half else SINGLE))
