"""Values close to the largest number of their dtype."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.text import number
from vario.rules import Finding, Step, rule

LARGEST = {True: 65504.0, False: 3.38e38}
LOWEST = -np.array([65504.0, 3.3895313892515355e38, 3.4028234663852886e38])
MASKS = np.concatenate([LOWEST, LOWEST / 2])
"""What attention writes at masked positions: the lowest number of float16, bfloat16 or float32, or half of it."""


@rule("limit", needs="activation")
def near_overflow(step: Step, margin: float = 8.0, steps: int = 50) -> Iterator[Finding]:
    """An activation close to the largest number of its dtype, or growing towards it.

    Why: one more step and it is Inf; one step later everything is NaN.

    Cause: a normalisation is missing, or the residual stream grows

    Points to: precision 3, module 2

    Next: Check the input of this module for a missing normalisation or a growing residual stream. If it runs in
    float16, use bfloat16, which has a larger range.
    """
    half = step.facts.is_half or "skipped_step" in step.scalars
    limit = LARGEST[half]
    deviation = step.trend("activation", "absmax")
    if deviation is None:
        return
    rows = step.rows("activation")
    with np.errstate(all="ignore"):
        # The fast mean lags by about 7 observations, the slow one by 63.
        ahead = deviation.values * np.exp(np.clip(deviation.gap, 0, 20) / 56 * steps)
    # A mask is written, not computed: with one, check the other extreme.
    is_mask = np.isclose(rows.statistic("min")[:, None], MASKS, rtol=1e-6, atol=0).any(axis=1)
    values = np.where(is_mask, np.abs(rows.statistic("max")), deviation.values)
    is_near = np.isfinite(values) & (values > limit / margin)
    grows = half & (deviation.warmth >= 20) & (deviation.gap > np.log(1.5)) & (ahead > limit)
    grows = grows & (values > limit / 1000)
    for index in np.flatnonzero(is_near | grows)[:16]:
        how = "close to" if is_near[index] else f"and in {steps} steps, at this rate, beyond"
        yield Finding(
            text=f"activation of '{rows.targets[index]}' reaches {number(deviation.values[index])}, {how} the largest "
            f"{'float16' if half else 'float32'}, {number(limit)}",
            quantity="activation",
            target=rows.targets[index],
            statistic="absmax",
            value=deviation.values[index],
            high=limit / margin,
            order=float(rows.order[index]),
            strength=float(np.log(deviation.values[index] / limit * 1000)),
        )
