"""Single gradients that change, as the training process sees them at every step."""

from __future__ import annotations

import math
from collections.abc import Iterator

from vario.core.quantities import GRADIENT_CHANGE
from vario.core.text import number
from vario.rules import Finding, Step, rule


@rule("relative", needs=GRADIENT_CHANGE, stage="backward")
def gradient_change(step: Step) -> Iterator[Finding]:
    """A gradient that vanishes, stands still, or becomes far larger or smaller while the others do not.

    Why: the code around this parameter changed, or its input, or its weight. This is checked at every step, even where
    the overhead budget records gradients rarely.

    Cause: this module's forward or backward pass changed, or what goes into it

    Points to: module 3, loop 1.5, data 0.5

    Next: Look at the forward pass around it for a `detach`, a `no_grad`, a branch that is no longer taken, or weights
    that were overwritten.
    """
    found = {name.removeprefix(GRADIENT_CHANGE): value for name, value in step.scalars.items() if _is_one(name)}
    if not found or step.has_nothing_to_learn or step.was_skipped:
        return
    first = min(found, key=lambda name: (found[name] not in (0.0, 1.0), -_size(found[name])))
    ratio = found[first]
    if ratio == 0:
        text = f"gradient of '{first}' has become zero or missing, and never was before"
    elif ratio == 1:
        text = f"gradient of '{first}' stands still: its norm has been the same to the last bit for several steps"
    else:
        text = f"gradient of '{first}' has become {_times(ratio)}, compared with the other gradients"
    yield Finding(
        text,
        "gradient",
        first,
        ratio,
        "norm",
        others=tuple(name for name in found if name != first),
        strength=_size(ratio),
        severity="warn" if ratio in (0.0, 1.0) else "note",
        cause=CAUSES.get(ratio, ""),
    )


CAUSES = {
    0.0: "backward no longer reaches this parameter: a `detach`, a `no_grad`, a branch that is no longer taken, or it "
    "was frozen (`requires_grad`)",
    1.0: "its gradient is an old one: backward no longer reaches this parameter and nothing zeroes what is there, or "
    "the same batch comes again and again",
}


def _is_one(name: str) -> bool:
    return name.startswith(GRADIENT_CHANGE)


def _size(ratio: float) -> float:
    return 10.0 if ratio in (0.0, 1.0) else abs(math.log(ratio))


def _times(ratio: float) -> str:
    return f"{number(ratio)} times larger" if ratio > 1 else f"{number(1 / ratio)} times smaller"
