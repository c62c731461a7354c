"""The first NaN or Inf, and what of its step was seen to be finite."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from vario.core.quantities import LOSSES
from vario.core.records import INFS, NANS, Frame
from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.masks import are_masks

BACKWARD = ("gradient", "gradient_local", "gradient_accumulated", "gradient_applied", "activation_gradient")
FORWARD = ("activation",)
STATE = ("weight", "weight_before", "moment", "moment_before", "stray")


@rule("exact", is_symptom=True)
def non_finite(step: Step) -> Iterator[Finding]:
    """A NaN or Inf, in the first tensor of the step that holds one.

    Why: it spreads to every weight within one step, and nothing trains after that.

    Next: Look at the module named first, whose inputs were finite unless they are named too, then at the batch of that
    step. If a gradient is named first, repeat the step under `torch.autograd.detect_anomaly()`.
    """
    looked_at = [frame for frame in step.frames if frame.quantity in (*FORWARD, *BACKWARD, *STATE)]
    bad = [_first(frame) for frame in looked_at if not (step.was_skipped and frame.quantity in BACKWARD)]
    found = sorted((finding for finding in bad if finding is not None), key=_when)
    if found:
        first = found[0]
        places = tuple(dict.fromkeys(f"{other.quantity} of '{other.target}'" for other in found[1:]))
        then = f"; then {', '.join(places[:3])}" if places else ""
        yield dataclasses.replace(first, text=first.text + then, others=places, cause=_cause(first, step))
        return
    for name, value in step.scalars.items():
        if "loss" in name and "scale" not in name and not np.isfinite(value):
            text, cause = f"{name} is {value}", _cause_of_loss(name, step)
            yield Finding(text, "scalar", name, value, strength=1e9, scope="global", cause=cause)


def _first(frame: Frame) -> Finding | None:
    rows = frame.summaries
    bad = rows[:, NANS] + rows[:, INFS] > 0
    if frame.quantity == "activation" and bad.any():
        bad = bad & ~are_masks(frame.targets, rows)
    if not bad.any():
        return None
    at = np.flatnonzero(bad)
    index = int(at[np.argmin(frame.order[at])])
    nans, infs = int(rows[index, NANS]), int(rows[index, INFS])
    held = " and ".join(f"{count} {word}" for count, word in ((nans, "NaN"), (infs, "Inf")) if count)
    what = frame.quantity.replace("_", " ")
    return Finding(
        text=f"{what} of '{frame.targets[index]}' holds {held} of {int(rows[index, 0])} elements",
        quantity=frame.quantity,
        target=frame.targets[index],
        value=float("nan") if nans else float("inf"),
        micro_step=frame.micro_step,
        order=float(frame.order[index]),
        strength=1e9,
    )


def _when(finding: Finding) -> tuple[int, float]:
    return finding.micro_step, finding.order


def _losses(step: Step) -> list[tuple[str, float]]:
    """What was trained on in this step, as far as it is known."""
    return [(name, step.scalars[name]) for name in LOSSES if name in step.scalars]


def _cause(first: Finding, step: Step) -> str:
    """What is likely to have happened; whatever it denies, it has looked at."""
    place = f"'{first.target}'"
    module = f"'{(first.target or '').partition(':')[0]}'"
    if first.quantity in FORWARD and ":input" in (first.target or ""):
        return f"what came into {module} was already bad: the batch, or code before it that is not watched"
    if first.quantity in FORWARD:
        return f"{module} made it from finite inputs: an overflow, a division by zero, or its weights"
    if first.quantity in STATE:
        if step.quantities.isdisjoint(BACKWARD):
            return f"the optimizer's state or weight {place} is bad; no gradient was recorded in this step"
        return f"the optimizer's state or weight {place} went bad before any gradient did"
    has_forward = not step.quantities.isdisjoint(FORWARD)
    bad = [f"{name} is {value}" for name, value in _losses(step) if not np.isfinite(value)]
    if bad and not has_forward:
        return (
            f"the forward pass or the loss function, before the backward pass: {bad[0]} in this step. {place} is only "
            "the first gradient seen, and no activation was recorded in this step"
        )
    if bad:
        return f"the loss function or its mask: the recorded activations were finite, and {bad[0]}"
    finite = [f"{name} was {number(value)}" for name, value in _losses(step)][:1]
    if has_forward:
        return f"the forward pass was finite, and the backward pass broke at {place}"
    if finite:
        return f"the backward pass broke at {place}: {finite[0]}. No activation was recorded in this step"
    return f"the forward or the backward pass broke: of this step {place} is the first tensor recorded, and no loss was"


def _cause_of_loss(name: str, step: Step) -> str:
    if step.quantities.isdisjoint(FORWARD):
        return (
            f"the forward pass or the loss function: no activation was recorded in the step in which '{name}' went bad"
        )
    return f"'{name}' is not finite although every tensor seen before it was: the loss function or its mask"
