"""Quiet rules: reports show their findings, but no alert is raised during training."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from vario.core.quantities import LOSSES
from vario.core.text import number, size
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Last, Streak, Trend

EVALUATION = ("eval_loss", "val_loss", "valid_loss", "validation_loss", "test_loss")


@rule("relative", is_quiet=True, needs=" ".join(LOSSES))
def plateau(step: Step, steps: int = 500, share: float = 0.005) -> Iterator[Finding]:
    """A loss that has stopped falling.

    Why: the rest of the run costs as much as the first part and improves nothing.

    Next: Check with `vario show lr` whether the learning rate is still high enough. If it is, try a larger model, and
    estimate how low this loss can get.
    """
    if step.loss is None or step.is_one_of_many:
        return
    _, loss = step.loss
    best = step.memory.get("plateau best", Last)
    row = best.row("loss")
    known, when = best["value"].item(row), best["step"].item(row)
    if math.isnan(known) or loss.slow < known - share * abs(known):
        best.swap_one("loss", loss.slow, step.number)
    elif step.number - when >= steps:
        yield Finding(
            f"the loss has not fallen by {number(100 * share)} % for {int(step.number - when)} steps",
            "scalar",
            "loss",
            loss.value,
            high=known,
            scope="global",
            strength=0.1,
        )


@rule("relative", is_quiet=True, needs=" ".join((*LOSSES, *EVALUATION)))
def overfitting(step: Step, share: float = 0.1) -> Iterator[Finding]:
    """A validation loss that rises while the training loss falls.

    Why: the model memorises its training data.

    Points to: data 1

    Next: Go back to the checkpoint with the lowest validation loss. Then add training data, dropout or weight decay, or
    train for fewer epochs.
    """
    now = step.latest_loss
    if step.scalars.keys().isdisjoint(EVALUATION):
        return
    for name in EVALUATION:
        value = step.scalars.get(name)
        if value is None or not np.isfinite(value):
            continue
        best = step.memory.get("overfitting best", Last)
        lowest = best.read("value", (name,))[0]
        if np.isnan(lowest) or value < lowest:
            best.swap((name, f"{name} then"), np.array([value, now]), step.number)
        elif value > (1 + share) * lowest and now < best.read("value", (f"{name} then",))[0]:
            yield Finding(
                f"{name} is {number(value)}, its lowest was {number(lowest)}, and the training loss is still falling",
                "scalar",
                name,
                value,
                high=lowest,
                scope="global",
                strength=0.1,
            )


@rule("relative", is_quiet=True, needs="gradient_applied")
def clipping_often(step: Step, share: float = 0.9, steps: int = 100) -> Iterator[Finding]:
    """Gradients clipped at nearly every step.

    Why: clipping, not the schedule, then sets the effective learning rate.

    Next: Raise the clipping norm (in PyTorch: `max_norm` of `clip_grad_norm_`), or lower the learning rate.
    """
    before, after = step.rows("gradient"), step.rows("gradient_applied")
    if not len(before) or not len(after) or step.was_skipped:
        return
    norms = [float(np.sqrt(np.nansum(rows.statistic("norm") ** 2))) for rows in (before, after)]
    trend = step.memory.get("clipping_often", Trend(linear=True))
    found = trend.follow("clipped", float(norms[1] < 0.99 * norms[0]))
    if found is not None and found.age >= steps and found.slow > share:
        yield Finding(
            f"gradients are clipped at {number(100 * found.slow, 3)} % of the steps, now from {number(norms[0])} to "
            f"{number(norms[1])}",
            "gradient_applied",
            value=found.slow,
            high=share,
            scope="global",
            strength=0.1,
        )


@rule("relative", is_quiet=True)
def memory_growth(step: Step, share: float = 0.1, steps: int = 100) -> Iterator[Finding]:
    """Memory that keeps growing.

    Why: it ends in an out-of-memory error, often hours after the start.

    Next: Look for losses or outputs that are kept with their graphs, and keep `loss.item()` or `output.detach()`
    instead. Then check caches and the loader's workers.
    """
    if step.number % steps:
        return
    names = tuple(name for name in step.scalars if name.endswith("memory_bytes") or "memory_allocated" in name)
    if not names:
        return
    values = np.array([step.scalars[name] for name in names])
    before, _ = step.memory.get("memory_growth", Last).swap(names, values, step.number)
    count = step.memory.get("memory_growth streak", Streak).update(names, values > 1.005 * before)
    first = step.memory.get("memory_growth first", Last)
    rows = first.at(names)
    first["value"][rows] = np.where(count <= 1, values, first["value"][rows])
    for index in np.flatnonzero((count >= 5) & (values > (1 + share) * first["value"][rows])):
        yield Finding(
            f"{names[index]} has grown from {size(first['value'][rows][index])} to {size(values[index])} in "
            f"{int(count[index]) * steps} steps without a pause",
            "scalar",
            names[index],
            values[index],
            high=float(first["value"][rows][index]),
            scope="global",
            strength=0.1,
        )
