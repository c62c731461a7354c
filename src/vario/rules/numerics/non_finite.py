"""The first NaN or Inf, and which tensors of its step were finite."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from vario.core.quantities import INPUT_NON_FINITE, LOSSES
from vario.core.records import INFS, NANS, Frame
from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.masks import are_masks
from vario.rules.api.series_state import Last

BACKWARD = ("gradient", "gradient_local", "gradient_accumulated", "gradient_applied", "activation_gradient")
REDUCED = ("gradient", "gradient_applied")
"""Quantities that are sums over ranks."""
FORWARD = ("activation",)
STATE = ("weight", "weight_before", "moment", "moment_before", "unexpected_change")


@rule("exact", is_symptom=True)
def non_finite(step: Step) -> Iterator[Finding]:
    """A NaN or Inf, reported for the first tensor of the step that contains one.

    Why: it spreads to every weight within one step, and training cannot recover.

    Cause: the forward or the backward pass produced it: an overflow, a division by zero, or a non-finite input

    Points to: module 2, precision 2, data 1, hardware 1

    Points to (batch): data 5

    Next: Look at the module named first, whose inputs were finite unless they are named too, then at that step's batch.
    If a gradient is named first, repeat the step with anomaly detection (in PyTorch:
    `torch.autograd.detect_anomaly()`).
    """
    looked_at = [frame for frame in step.frames if frame.quantity in (*FORWARD, *BACKWARD, *STATE)]
    bad = [_first(frame) for frame in looked_at if not (step.was_skipped and frame.quantity in BACKWARD)]
    found = sorted((finding for finding in bad if finding is not None), key=_when)
    if _has_spread(step, looked_at, found):
        return  # from weights that were reported
    batch = _of_the_batch(step)
    if batch is not None and (found or any(not math.isfinite(loss) for _, loss in _losses(step))):
        found.insert(0, batch)
    if found:
        first = found[0]
        places = tuple(dict.fromkeys(f"{other.quantity} of '{other.target}'" for other in found[1:]))
        then = f"; then {', '.join(places[:3])}" if places else ""
        cause = first.cause or _cause(first, step)
        yield dataclasses.replace(first, text=first.text + then, others=places, cause=cause)
        return
    for name, value in step.scalars.items():
        if "loss" in name and "scale" not in name and not math.isfinite(value):
            text, cause = f"{name} is {value}", _cause_of_loss(name, step)
            yield Finding(text, "scalar", name, value, strength=1e9, scope="global", cause=cause)


def _has_spread(step: Step, looked_at: Sequence[Frame], found: Sequence[Finding]) -> bool:
    """Whether weights were non-finite after an earlier step, and nothing recorded since was finite again."""
    spoilt = step.memory.get("non_finite weights", Last)
    before = spoilt.one("value", "weight")
    now = 1.0 if any(finding.quantity == "weight" for finding in found) else before if found or not looked_at else 0.0
    if now != before and not math.isnan(now):
        spoilt.swap_one("weight", now, step.number)
    return before == 1 and now == 1 and bool(found)


def _of_the_batch(step: Step) -> Finding | None:
    """What of the model's inputs is not finite, where gradients are not either."""
    counts = {name: value for name, value in step.scalars.items() if name.startswith(INPUT_NON_FINITE)}
    if not counts:
        return None
    name, value = next(iter(counts.items()))
    place = name.removeprefix(INPUT_NON_FINITE)
    return Finding(
        f"the model's input '{place}' contains {number(value)} elements that are NaN or Inf",
        "activation",
        place,
        math.nan,
        order=-1.0,
        strength=1e9,
        scope="batch",
        cause=f"the batch: '{place}' was already non-finite when it came to the model",
    )


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
        text=f"{what} of '{frame.targets[index]}' contains {held} in {int(rows[index, 0])} elements",
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
    """The losses recorded in this step."""
    return [(name, step.scalars[name]) for name in LOSSES if name in step.scalars]


def _cause(first: Finding, step: Step) -> str:
    """The likely cause. It rules out only what was recorded."""
    place = f"'{first.target}'"
    module = f"'{(first.target or '').partition(':')[0]}'"
    if first.quantity in FORWARD and ":input" in (first.target or ""):
        return f"the input of {module} was already non-finite: check the batch, and code before it that is not watched"
    if first.quantity in FORWARD:
        return f"{module} produced it from finite inputs: an overflow, a division by zero, or its weights"
    if first.quantity in STATE:
        if step.quantities.isdisjoint(BACKWARD):
            return f"the optimizer's state or weight {place} is non-finite; no gradient was recorded in this step"
        return f"the optimizer's state or weight {place} became non-finite before any gradient did"
    has_forward = not step.quantities.isdisjoint(FORWARD)
    bad = [f"{name} is {value}" for name, value in _losses(step) if not np.isfinite(value)]
    if bad and not has_forward:
        return (
            f"the forward pass or the loss function, before the backward pass: {bad[0]} in this step. {place} is only "
            "the first gradient recorded, and no activation was recorded in this step"
        )
    if bad:
        return f"the loss function or its mask: the recorded activations were finite, and {bad[0]}"
    finite = [f"{name} was {number(value)}" for name, value in _losses(step)][:1]
    if first.quantity in REDUCED and step.facts.world_size > 1:
        seen = [*finite, *(["the recorded activations were finite"] if has_forward else [])]
        here = f"on this one {' and '.join(seen)}" if seen else "on this one no loss and no activation was recorded"
        return f"any of the {step.facts.world_size} ranks, which sum their gradients at {place}: {here}"
    if has_forward:
        return f"the recorded activations were finite; the backward pass produced it at {place}"
    if finite:
        return f"the backward pass produced it at {place}: {finite[0]}. No activation was recorded in this step"
    return f"the forward or the backward pass: {place} is the first tensor recorded in this step, and there is no loss"


def _cause_of_loss(name: str, step: Step) -> str:
    if step.quantities.isdisjoint(FORWARD):
        return (
            "the forward pass or the loss function: no activation was recorded in the step in which "
            f"'{name}' became non-finite"
        )
    return f"'{name}' is not finite although every tensor recorded before it was: the loss function or its mask"
