"""What the loss itself tells."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.detection.memory import Last, Streak, Trend
from vario.detection.telling import WARM, compared
from vario.rules import Finding, Step, rule
from vario.text import number


@rule("relative", is_quiet=True, is_symptom=True)
def loss_spike(step: Step, threshold: float = 6.0, share: float = 0.05) -> Iterator[Finding]:
    """A loss far from its usual value, for one step.

    Why: the loss is the last to know; look for what came before it.

    Next: the alerts of the steps before.
    """
    for name in ("loss", "loss_local"):
        deviation = step.scalar_trend(name, linear=True, floor=1e-6)
        if deviation is None:
            continue
        off = float(deviation.distance[0])
        if (
            deviation.warmth[0] >= WARM
            and abs(deviation.z[0]) > threshold
            and abs(off) > share * abs(deviation.usual[0])
        ):
            yield Finding(
                f"{name} is {number(deviation.values[0])}, {compared(deviation, 0)}",
                "scalar",
                name,
                deviation.values[0],
                low=deviation.low(0),
                high=deviation.high(0),
                scope="batch",
                strength=abs(float(deviation.z[0])),
            )
        return


@rule("relative", is_symptom=True)
def loss_shift(step: Step, threshold: float = 4.5, share: float = 0.1, steps: int = 6) -> Iterator[Finding]:
    """A loss that has moved to another level and stays there.

    Why: when every layer looks as before and the loss does not, it is the batch or its labels that changed.

    Next: what the loader gives since then; the masks and weights of the loss.
    """
    name = next((known for known in ("loss_local", "loss") if known in step.scalars), None)
    if name is None or not np.isfinite(step.scalars[name]):
        return
    value = step.scalars[name]
    means = step.memory.get("loss_shift", Trend(linear=True))
    recent = means.read("fast", ("loss",))[0]
    known = means.update(("loss",), np.array([value]), step.number)
    # A falling loss leaves its long mean by itself, so it is compared with the mean of the last few.
    noise = step.memory.get("loss_shift noise", Trend(linear=True, floor=1e-9))
    beside = noise.update(("loss",), np.array([value - recent if known.age[0] else 0.0]))
    if known.warmth[0] < 1.5 * WARM:
        return
    held = step.memory.get("loss_shift held", Last())
    reference, spread, count, total = held.read("value", HELD)
    if not count > 0:
        if abs(beside.z[0]) > threshold and abs(value - recent) > share * abs(recent):
            held.swap(HELD, np.array([recent, beside.spread[0], 1.0, value]), step.number)
        return
    count, total = count + 1, total + value
    held.swap(HELD, np.array([reference, spread, 0.0 if count >= steps else count, total]), step.number)
    shift = total / count - reference
    if count >= steps and abs(shift) > max(share * abs(reference), 0.75 * threshold * spread):
        yield Finding(
            f"{name} has {'risen' if shift > 0 else 'fallen'} to {number(total / count)} and stays there, it was "
            f"{number(reference)} {steps} steps ago",
            "scalar",
            name,
            total / count,
            low=reference - 3 * spread,
            high=reference + 3 * spread,
            scope="batch",
            strength=abs(float(shift / max(abs(reference), 1e-12))),
            since=step.number - steps + 1,
        )


HELD = ("reference", "spread", "count", "total")


@rule("relative", is_symptom=True)
def loss_swings(step: Step, times: float = 3.0, share: float = 0.1, steps: int = 6) -> Iterator[Finding]:
    """A loss that swings from step to step far more widely than it did.

    Why: batches that are unlike each other: rows sorted by label or source, a batch that has become too small.

    Next: the order in which the loader hands out rows, and whether it still shuffles.
    """
    name = next((known for known in ("loss_local", "loss") if known in step.scalars), None)
    if name is None or not np.isfinite(step.scalars[name]):
        return
    last, _ = step.memory.get("loss_swings last", Last()).swap(("loss",), np.array([step.scalars[name]]), step.number)
    if np.isnan(last[0]):
        return
    swing = abs(step.scalars[name] - float(last[0]))
    trend = step.memory.get("loss_swings", Trend(linear=True, floor=1e-9))
    found = trend.update(("swing",), np.array([swing]), step.number)
    lately, usual = trend.read("fast", ("swing",))[0], float(found.usual[0])
    level = abs(float(last[0]))
    is_wide = found.warmth[0] >= 1.5 * WARM and lately > times * usual and lately > share * level
    count = step.memory.get("loss_swings wide", Streak()).update(("swing",), np.array([bool(is_wide)]))[0]
    if count >= steps:
        yield Finding(
            f"{name} swings by {number(lately)} from step to step, usually by {number(usual)}",
            "scalar",
            name,
            lately,
            high=times * usual,
            scope="batch",
            strength=float(np.log(lately / max(usual, 1e-12))),
            since=step.number - int(count) + 1,
        )
