"""A validation loss that leaves its past while the training loss does not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from vario.core.quantities import LOSSES
from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Last
from vario.rules.data.quiet_rules import EVALUATION

GROUPS = ("val/", "eval/", "valid/", "validation/", "test/", "dev/")
"""What names of validation losses begin with, where they are grouped."""
KEPT = 12
"""The evaluations that are remembered."""
LEAST_KNOWN = 4
LATELY = 3
TRAINING = 0.5
"""The share of the rise that the training loss may have without being the reason."""


@rule("relative", needs=" ".join((*LOSSES, *EVALUATION, *GROUPS)), stage="loss")
def validation_shift(step: Step, threshold: float = 8.0, share: float = 0.15) -> Iterator[Finding]:
    """A validation loss that rises suddenly, or is not finite, while the training loss does not.

    Why: the model that is trained is not the model that is evaluated, or the evaluation changed: its data, its mode,
    averaged weights, running statistics. Overfitting comes slowly and is reported by its own rule.

    Cause: what is evaluated changed, not what is trained: running statistics, averaged weights, evaluation mode, or the
    validation data

    Points to: module 3, data 2, loop 2

    Next: Check the evaluation by repeating it with the last checkpoint before this step. If its loss is high too, the
    evaluation changed; otherwise compare running statistics and averaged weights of the two checkpoints.
    """
    now = step.latest_loss
    for name in (name for name in step.scalars if _is_validation(name)):
        value = step.scalars[name]
        past, then = _remembered(step, name, value, now)
        if len(past) < LEAST_KNOWN or not math.isfinite(now):
            continue
        usual = float(np.max(past[-LATELY:]))
        noise = max(1.4826 * float(np.median(np.abs(np.diff(past)))), 0.02 * abs(usual), 1e-12)
        is_far = not math.isfinite(value) or value - usual > max(threshold * noise, share * abs(usual))
        has_followed = now - then > TRAINING * (value - usual) if math.isfinite(value) else False
        if is_far and not has_followed:
            yield Finding(
                f"{name} is {number(value)}, {number(float(past[-1]))} at the evaluation before, and the training loss "
                f"did not rise with it ({number(then)} then, {number(now)} now)",
                "scalar",
                name,
                value,
                low=float(past[-LATELY:].min()),
                high=usual + 3 * noise,
                scope="global",
                strength=1.0,
                severity="warn",
            )


def _is_validation(name: str) -> bool:
    return name in EVALUATION or (name.startswith(GROUPS) and "loss" in name)


def _remembered(
    step: Step, name: str, value: float, training: float
) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], float]:
    """The finite validation losses before this one, oldest first, and the training loss at the last of them."""
    memory = step.memory.get(f"validation_shift {name}", Last)
    memory.at(_PLACES)
    values = memory["value"]
    past = values[:KEPT][np.isfinite(values[:KEPT])].copy()
    then = values.item(KEPT)
    if math.isfinite(value):
        values[: KEPT - 1] = values[1:KEPT].copy()
        values[KEPT - 1], values[KEPT] = value, training
    return past, then


_PLACES: Sequence[str] = (*(f"{back} back" for back in reversed(range(KEPT))), "training")
