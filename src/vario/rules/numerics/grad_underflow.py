"""Gradients that underflow to zero."""

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
    """A rising share of zeros in the gradient of a matrix.

    Why: values below the smallest number of the dtype become zero, and training loses them. In most matrices at once,
    the loss scale is too small; in one, a layer is going inactive. Zeros in most gradients that are far above the
    smallest number of their dtype come from units that do not fire, and are not reported.

    Cause: this layer is going inactive, or its gradients are too small

    Cause (global): gradients underflow everywhere: the loss scale is too small for this dtype

    Points to: precision 2, module 2

    Points to (global): precision 5

    Next: Raise the loss scale (in PyTorch: `init_scale` of `GradScaler`), or run the backward pass in bfloat16. If only
    one layer is named, look at its activations: `vario show 'LAYER:*' --quantity activation --statistic zeros`.
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
    # Gradients far above the smallest number have zeros where units do not fire.
    most = rose.sum() > 1 and rose.sum() > known.sum() / 2
    is_near = most and _is_near_the_smallest(step, rows, rose)
    if most and not is_near and not _is_half(step, rows, rose):
        return
    if most:
        yield Finding(
            f"the share of zeros in the gradients rose in {int(rose.sum())} of {int(known.sum())} matrices",
            "gradient",
            statistic="zeros",
            value=float(np.median(deviation.values[rose])),
            high=float(np.median(deviation.usual[rose])),
            scope="global",
            strength=float(deviation.distance[rose].max()) * 10,
            others=tuple(rows.targets[index] for index in np.flatnonzero(rose)[:16]),
            severity="warn" if is_near else "note",
        )
        return
    silent = rose & (deviation.values > share) & (deviation.usual < share / 2) & (deviation.warmth >= WARM)
    count = step.memory.get("grad_underflow", Streak).update(rows.targets, silent)
    for index in np.flatnonzero(count >= steps)[:16]:
        yield Finding(
            f"{number(100 * deviation.values[index], 3)} % of the gradient of '{rows.targets[index]}' is zero, "
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
"""Below these sizes some of a gradient's elements may round to zero: float16 ends at 6e-8, the others at 1e-38."""


def _is_near_the_smallest(step: Step, rows: Rows, chosen: Flags) -> bool:
    """Whether these gradients are so small that their elements may round to zero."""
    size = float(np.median(rows.statistic("rms")[chosen]))
    # In float32, gradients that are all zero have not been rounded: the loss has none.
    return size < HALF if _is_half(step, rows, chosen) else 0 < size < SINGLE


def _is_half(step: Step, rows: Rows, chosen: Flags) -> bool:
    """Whether something is computed in float16: these parameters are, or there is a loss scaler."""
    dtypes = {step.facts.dtypes.get(rows.targets[index], "") for index in np.flatnonzero(chosen)}
    return "float16" in dtypes or "skipped_step" in step.scalars
