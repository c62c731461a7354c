"""Updates that change no weight."""

from __future__ import annotations

from collections.abc import Iterator

from vario.core.quantities import GRADIENT_NORM, WEIGHTS_STILL
from vario.rules import Finding, Step, rule


@rule("exact", needs=WEIGHTS_STILL)
def weights_still(step: Step) -> Iterator[Finding]:
    """Updates that leave a few elements of up to 32 weights bit-identical.

    Why: the optimizer is called, but the model does not learn. These elements are compared before and after every
    update in a regular loop on the CPU, which does the same in every step.

    Cause (global): the optimizer does not update this model: its learning rate is zero, it holds the parameters of
    another copy of the model, or its updates round to zero

    Points to (global): optimizer 3, schedule 2.5

    Next: Check the learning rate at the moment of the update, and that the optimizer was created from this model's
    parameters.
    """
    number = step.scalars.get(WEIGHTS_STILL)
    if number is None:
        return
    has_gradient = step.scalars.get(GRADIENT_NORM, 1.0) > 0
    is_ending = step.is_rate_spent and step.scalars.get("lr") != 0
    if step.was_skipped or step.has_nothing_to_learn or is_ending or not has_gradient:
        return  # where nothing is left to learn, or of the rate, that is expected
    yield Finding(
        f"{number:.0f} updates in a row have changed none of the elements looked at, although there are gradients",
        "update",
        value=0.0,
        scope="global",
        strength=1e3,
        since=max(0, step.number - int(number) + 1),
        severity="note" if step.is_rate_spent else "warn",  # a schedule may have ended
    )
