"""Gradients that changed together and for good, over all parameters at every step."""

from __future__ import annotations

import math
from collections.abc import Iterator

from vario.core.quantities import GRADIENT_SHIFT
from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.joint_shift import EVERY, GradientShift, shift_name
from vario.rules.api.series_state import Last, Values

LATELY = 40
"""Steps in which such a change begins before it is certain."""
RATE_FACTOR = 1.3
"""By how much the learning rate must change to be the reason."""
LATENCY = 12


@rule("relative", needs=f"gradient {GRADIENT_SHIFT} lr", stage="backward")
def gradient_shift(step: Step) -> Iterator[Finding]:
    """Gradients that have become larger or smaller together, or some compared with others, and stay so.

    Why: another kind of data, labels or code that hardly moves the loss still changes which layers get how much
    gradient. That pattern is compared over all parameters at every step, in units of how far it strayed before. It is
    not reported after a change of the learning rate, nor while the loss falls fast.

    Cause: the data, the labels, a term of the loss or code of the model changed: gradients have another pattern, which
    the loss hardly shows

    Points to (global): data 2.5, labels 2, module 1.5, loop 1.5

    Points to: module 2.5, data 2, labels 1.5, loop 1

    Next: Look at a batch of this step beside one from before: inputs first, then labels and what the loss compares.
    Look then at code that an option, a flag or a global chooses.
    """
    has_any = "lr" in step.scalars or any(name.startswith(GRADIENT_SHIFT) for name in step.scalars)
    if not has_any and not len(step.rows("gradient")):
        return
    memory = step.memory.get("gradient_shift rate", Last)
    rate = step.scalars.get("lr")
    if rate is not None and rate > 0:
        before = memory.swap_one("rate", rate, step.number)
        if before > 0 and abs(math.log(rate / before)) > math.log(RATE_FACTOR):
            memory.swap_one("changed", float(step.number), step.number)
    found = {name: value for name, value in step.scalars.items() if name.startswith(GRADIENT_SHIFT)} | _of_rows(step)
    if not found or step.was_skipped or step.number - memory.one("value", "changed") < LATELY:
        return
    name, ratio = max(found.items(), key=lambda pair: abs(math.log(pair[1])))
    kind, _, place = name.removeprefix(GRADIENT_SHIFT).partition(":")
    place = place.partition(" (")[0]
    size = f"{number(ratio, 3)} times larger" if ratio > 1 else f"{number(1 / ratio, 3)} times smaller"
    is_local = kind == "pattern" and bool(place)
    if is_local and _is_learning(step):
        return  # what is learned at once, after long, changes which layers learn
    yield Finding(
        f"the gradient of '{place}' has become {size} compared with the others, and others changed with it"
        if is_local
        else f"gradients of all parameters have become {size} and stay so",
        "gradient" if is_local else "scalar",
        place if is_local else name,
        ratio,
        scope="tensor" if is_local else "global",
        strength=abs(math.log(ratio)),
        since=max(0, step.number - LATENCY),
        unseen_from=max(0, step.number - LATELY),
    )


def _is_learning(step: Step, share: float = 0.1) -> bool:
    """Whether the recent loss is well below that of many steps."""
    return step.loss is not None and step.loss[1].slow - step.loss[1].fast > share * abs(step.loss[1].slow)


class _Recorded:
    """The recorded gradients of consecutive steps, where the overhead budget leaves those of each step."""

    def __init__(self) -> None:
        self.shift = GradientShift()
        self.rows: list[Values] = []
        self.last_step = -1
        self.names: tuple[str, ...] = ()


def _of_rows(step: Step) -> dict[str, float]:
    """Compare recorded gradients; steps without them are compared by the training process."""
    rows = step.rows("gradient")
    if not len(rows):
        return {}
    known = step.memory.worked_out.setdefault("gradient_shift", _Recorded())
    if step.number != known.last_step + 1 or rows.targets != known.names:
        known.shift, known.rows = GradientShift(), []
    known.last_step, known.names = step.number, rows.targets
    known.rows.append(rows.statistic("norm"))
    if len(known.rows) < EVERY:
        return {}
    found, known.rows = known.shift.follow(rows.targets, known.rows), []
    return {} if found is None else {shift_name(found): found.ratio}
