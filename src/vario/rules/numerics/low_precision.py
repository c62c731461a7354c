"""Tensors that a low precision does not hold well, from their distributions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.elements.bins import Counts
from vario.core.elements.precision import FORMATS, loss, num_nonzero, outlier_share, peak, share_above
from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Streak

HALF = FORMATS["fp16"]
HELD = ("gradient", "weight", "moment")
FEWEST = 256
"""Smaller tensors are passed over: a few elements decide there."""


def _half_targets(step: Step, quantity: str) -> tuple[list[str], Counts]:
    """Return the float16 tensors of a quantity that have distributions in this step."""
    names, counts = step.distributions(quantity)
    at = [index for index, name in enumerate(names) if step.facts.dtypes.get(name.partition(":")[0]) == "float16"]
    return [names[index] for index in at], counts[at]


@rule("limit", needs="gradient")
def digits_lost(step: Step, share: float = 0.5, steps: int = 2) -> Iterator[Finding]:
    """A float16 gradient whose elements are mostly below the smallest normal number.

    Why: such elements have fewer digits the smaller they are, and the smallest become zero.

    Cause: the gradients are too small for float16 without a loss scale

    Points to: precision 5

    Next: Raise the loss scale (in PyTorch: use `torch.amp.GradScaler`), or train in bfloat16. `vario precision` shows
    what each tensor loses.
    """
    # With a scaler gradients are recorded without the scale that they are computed with.
    if not step.facts.is_half or "skipped_step" in step.scalars or not step.facts.dtypes:
        return
    names, counts = _half_targets(step, "gradient")
    if not names:
        return
    below = np.where(num_nonzero(counts) >= FEWEST, loss(counts, HALF).subnormal.low, 0.0)
    count = step.memory.get("digits_lost", Streak).update(tuple(names), below > share)
    for index in np.flatnonzero(count >= steps)[:16]:
        yield Finding(
            f"{number(100 * below[index], 3)} % of the gradient of '{names[index]}' is below "
            f"{number(2.0**HALF.normal)}, the smallest normal number of float16",
            "gradient",
            names[index],
            below[index],
            high=share,
            strength=float(below[index]),
            severity="note",
        )


@rule("limit", needs=" ".join(HELD))
def overflow_ahead(step: Step, margin: float = 4.0) -> Iterator[Finding]:
    """A float16 gradient, weight or optimizer state that comes close to the largest float16 number.

    Why: beyond it is Inf, and one step later everything is NaN.

    Cause: it grows, or it is scaled by too much

    Points to: precision 4, module 1

    Next: Keep this tensor in float32 or bfloat16. For gradients lower the loss scale, or clip them.
    """
    if not step.facts.is_half:
        return
    for quantity in HELD:
        names, counts = _half_targets(step, quantity)
        if not names:
            continue
        near = share_above(counts, HALF.largest / margin)
        for index in np.flatnonzero(near.low > 0)[:16]:
            yield Finding(
                f"{number(100 * near.low[index], 2)} % or more of the {quantity} of '{names[index]}' is within a "
                f"factor of {number(margin)} of {number(HALF.largest)}, the largest float16",
                quantity,
                names[index],
                near.low[index],
                high=0.0,
                strength=float(near.low[index]),
            )


@rule("limit", needs="activation", is_quiet=True)
def outlier_features(
    step: Step, factor: float = 256.0, most: float = 1e-3, ratio: float = 4096.0, steps: int = 2
) -> Iterator[Finding]:
    """An activation with a few elements thousands of times as large as the others.

    Why: one scale does not fit both in fp8 or int8: the large ones overflow, or the others become zero. Only models
    with 16-bit parameters, or with a loss scaler, are checked.

    Cause: a few channels carry most of the magnitude, as in many trained transformers

    Points to: precision 2, module 1

    Next: Find out which channels they are (quantity `channel`). For low precision, scale by block or channel, or keep
    this layer in bfloat16.
    """
    has_16_bits = any(dtype in ("float16", "bfloat16") for dtype in step.facts.dtypes.values())
    if not (has_16_bits or "skipped_step" in step.scalars):
        return
    names, counts = step.distributions("activation")
    if not names:
        return
    share, ratios = outlier_share(counts, factor).high, peak(counts).low
    with np.errstate(invalid="ignore"):
        are_few = (share > 0) & (share <= most) & (ratios >= ratio) & (num_nonzero(counts) >= FEWEST)
    count = step.memory.get("outlier_features", Streak).update(names, are_few)
    for index in np.flatnonzero(count >= steps)[:16]:
        yield Finding(
            f"{number(100 * share[index], 2)} % of the activation of '{names[index]}' is more than {number(factor)} "
            f"times its median, the largest at least {number(ratios[index], 2)} times",
            "activation",
            names[index],
            ratios[index],
            high=ratio,
            strength=float(np.log(ratios[index])),
            severity="note",
        )
