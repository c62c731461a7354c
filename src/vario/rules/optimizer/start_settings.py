"""Settings of the first steps that hardly anybody means."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.quantities import GRADIENT_NORM
from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Last, Streak

FIRST = 16
ADAM_RATE, ADAM_DECAY, ADAM_EPS, LEAST_BETA2, MOST_BETA1 = 0.1, 0.05, 1e-2, 0.5, 0.99
MOST_DECAY = 5.0
"""The most of a learning rate, of the share that decay takes from weights in one update, and so on."""
NO_HEADWAY = 6
"""Steps in a row without any gradient from the first on."""
_LOSSES = ("loss", "loss_local", "loss_backward")


@rule("limit", needs="setting/", stage="optimizer")
def start_settings(step: Step) -> Iterator[Finding]:
    """An option of Adam or its relatives in the first steps that is far from every usual value.

    Why: numbers that have slipped by some powers of ten, or stand in each other's place, make a run useless from its
    first step, and nothing changes later that would show it.

    Cause: an option of the optimizer has a wrong value, or that of another option

    Points to (global): optimizer 5

    Next: Check the options of the optimizer and of each of its groups: `vario report` lists them.
    """
    if not any(name.startswith("setting/") for name in step.scalars):
        return
    if step.number - step.memory.first_step(step.number) >= FIRST:
        return
    rate = step.scalars.get("lr", float("nan"))
    for name, value in step.scalars.items():
        if name.startswith("setting/") and ":" not in name and (text := _unusual(step, name, value, rate)):
            what = "learning rate" if "learning rate" in text else name.rpartition("setting/")[2].replace("_", " ")
            cause = f"the {what} of the optimizer is wrong: by some powers of ten, or it is the value of another option"
            yield Finding(text, "scalar", name, value, scope="global", strength=4.0, severity="note", cause=cause)


def _unusual(step: Step, name: str, value: float, rate: float) -> str:
    """What is unusual about an option; empty if nothing is."""
    option, _, group = name.rpartition("setting/")[2].partition("/")
    beta2 = step.scalars.get(name.replace(option, "beta2"), float("nan"))
    if np.isnan(beta2):
        return ""  # not of Adam's kind
    if option == "beta1" and value > max(MOST_BETA1, beta2):
        return f"beta1 is {number(value)} and beta2 {number(beta2)}: usually the second is larger"
    if option == "beta2" and value < LEAST_BETA2:
        return f"beta2 is {number(value)}, usually 0.9 to 0.999: the second moment follows single batches"
    if option == "eps" and value > ADAM_EPS:
        return f"eps is {number(value)}, usually at most 1e-6: updates are no longer normalised"
    if option == "beta1" and not group and rate > ADAM_RATE:
        return f"the learning rate is {number(rate)}, with Adam usually at most 0.01: each update moves weights so far"
    if option == "weight_decay" and value > MOST_DECAY and not value * rate > ADAM_DECAY:
        return f"weight decay is {number(value)}, usually at most about 1"
    if option == "weight_decay" and value * rate > ADAM_DECAY:
        share = number(100 * value * rate, 3)
        return f"weight decay {number(value)} takes {share} % from the weights in each update"
    return ""


@rule("exact", needs="setting/all_in_eval", stage="forward")
def start_in_eval(step: Step) -> Iterator[Finding]:
    """A model that is trained in evaluation mode from the start, though it has dropout or batch norm.

    Why: models that are loaded from a checkpoint often come in evaluation mode. Without `model.train()` dropout does
    nothing and batch norm never adapts. A run with this mode from the start changes nothing that could be noticed.

    Cause: `model.train()` was never called: the whole model is in evaluation mode

    Points to (global): loop 5

    Next: Call `model.train()` before the first step, unless this is meant.
    """
    value = step.scalars.get("setting/all_in_eval", 0.0)
    if value > 0 and step.number - step.memory.first_step(step.number) < FIRST:
        yield Finding(
            f"the whole model is in evaluation mode while it is trained: {number(value)} of its modules are dropout or "
            "batch norm",
            "scalar",
            "setting/all_in_eval",
            value,
            scope="global",
            strength=5.0,
            severity="note",
        )


@rule("exact", needs=f"gradient {GRADIENT_NORM}", stage="backward")
def start_without_gradient(step: Step, steps: int = NO_HEADWAY) -> Iterator[Finding]:
    """Gradients of all parameters that are exactly zero from the first step on, though the loss is not.

    Why: nothing is learned. Two factors that both start at zero, such as the matrices of an adapter, give each other no
    gradient; an output that is multiplied by zero or clamped has none either.

    Cause: what is trained starts where it gets no gradient: both factors of a product are zero (both matrices of an
    adapter), a gate is closed, or an output is clamped

    Points to (global): module 5, loop 1

    Next: Check the initialisation of what is trained: at most one of two matrices that are multiplied may be zero.
    """
    rows = step.rows("gradient")
    if not len(rows) and GRADIENT_NORM not in step.scalars:
        return
    first = step.memory.first_step(step.number)
    if step.number - first >= 4 * steps or step.was_skipped:
        return
    norm = step.scalars.get(GRADIENT_NORM, float("nan"))
    is_zero = bool((rows.statistic("absmax") == 0).all()) if len(rows) else norm == 0
    has_loss = any(abs(step.scalars.get(name, 0.0)) > 0 for name in _LOSSES)
    count = step.memory.get("start_without_gradient", Streak).follow("all", is_zero and has_loss)
    told = step.memory.get("start_without_gradient told", Last)
    if not is_zero:
        told.swap_one("moved", 1.0, step.number)
    if count == steps and told.one("value", "moved") != 1:
        yield Finding(
            f"the gradients of all parameters have been exactly zero in all {steps} steps so far, and the loss is not",
            "scalar",
            GRADIENT_NORM,
            0.0,
            scope="global",
            strength=6.0,
            since=first,
            severity="warn",
        )
