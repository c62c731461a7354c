"""The first NaN or Inf."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.records import INFS, NANS, Frame
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
        yield _with_others(first, places)
        return
    for name, value in step.scalars.items():
        if "loss" in name and "scale" not in name and not np.isfinite(value):
            yield Finding(f"{name} is {value}", "scalar", name, value, strength=1e9, scope="global")


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


def _with_others(first: Finding, places: tuple[str, ...]) -> Finding:
    then = f"; then {', '.join(places[:3])}" if places else ""
    return Finding(
        text=first.text + then,
        quantity=first.quantity,
        target=first.target,
        value=first.value,
        micro_step=first.micro_step,
        order=first.order,
        strength=first.strength,
        others=places,
    )
