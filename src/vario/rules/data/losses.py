"""What the loss itself tells."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from vario.core.quantities import LOSS, LOSS_BACKWARD, LOSS_LOCAL, LOSSES
from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.findings import WARM
from vario.rules.api.series_state import Last, Streak, Trend, Values


@rule("relative", is_quiet=True, is_symptom=True, needs=" ".join(LOSSES))
def loss_spike(step: Step, threshold: float = 6.0, share: float = 0.05) -> Iterator[Finding]:
    """A loss far from its usual value, for one step.

    Why: the loss is the last to know; look for what came before it.

    Next: Look at the alerts of the steps before: `vario check --all` lists them.
    """
    if step.loss is None:
        return
    name, found = step.loss
    reach = threshold * found.spread
    if found.warmth >= WARM and abs(found.distance) > max(reach, share * abs(found.usual)):
        low, high = found.usual - 3 * found.spread, found.usual + 3 * found.spread
        yield Finding(
            f"{name} is {number(found.value)}, usually {number(found.usual)} ({number(low)} to {number(high)})",
            "scalar",
            name,
            found.value,
            low=low,
            high=high,
            scope="batch",
            strength=abs(found.distance) / found.spread,
        )


LATELY = 8
KEPT = tuple(f"{back} back" for back in reversed(range(56)))
"""The losses that are remembered, the newest last."""
LEAST_KNOWN = 32


@rule("relative", is_symptom=True, needs=" ".join(LOSSES))
def loss_shift(step: Step, threshold: float = 7.0, share: float = 0.1) -> Iterator[Finding]:
    """A loss that has moved to another level and stays there.

    Why: when every layer looks as before and the loss does not, it is the batch or its labels that changed, or a term
    of the loss.

    Next: Look at what the loader gives since then, the labels first. Then check the masks, weights and terms of the
    loss.
    """
    name = _name(step)
    if name is None:
        return
    memory = step.memory.get(f"loss_shift {name}", Last())
    losses = np.append(memory.read("value", KEPT)[1:], step.scalars[name])
    memory["value"][: len(KEPT)] = losses
    newest = losses.tolist()
    seen = [loss for loss in newest[:-LATELY] if math.isfinite(loss)]
    if len(seen) < LEAST_KNOWN:
        return
    # Without the lowest and the highest: one bad batch is no level.
    level = sum(sorted(newest[-LATELY:])[1:-1]) / (LATELY - 2)
    low, high = min(seen), max(seen)
    # Most steps end here: the two levels cannot be as far apart as it takes.
    if max(abs(level - low), abs(level - high)) <= share * max(low, -high):
        return
    before, lately = losses[:-LATELY], losses[-LATELY:]
    when = np.arange(len(losses), dtype=np.float64) - len(losses)
    known = np.isfinite(before)
    # A falling loss leaves its mean by itself, so it is compared with the line through those before; spikes apart.
    rest = (before - _line(when[:-LATELY][known], before[known], when[:-LATELY]))[known]
    rest -= np.median(rest)
    known[known] = np.abs(rest) <= 6 * np.median(np.abs(rest))
    at, before = when[:-LATELY][known], before[known]
    noise = max(float(np.std(before - _line(at, before, at), ddof=2)), 1e-3 * abs(float(before.mean())))
    expected = _line(at, before, when[-LATELY:])
    off = lately - expected
    shift = float(np.sort(off)[1:-1].mean())
    # A fall that flattens leaves the line, and stays at the level it had reached.
    reached = level - float(before[-LATELY:].mean())
    shift = np.sign(shift) * min(abs(shift), max(0.0, np.sign(shift) * reached))
    # How far the end of a line through so many noisy points may miss a mean of a few.
    reach = when[-LATELY:].mean() - at.mean()
    error = noise * np.sqrt(1 / LATELY + 1 / len(at) + reach**2 / (len(at) * at.var()))
    is_off = off * np.sign(shift) > 1.5 * noise
    if abs(shift) > threshold * error and is_off.sum() > LATELY / 2 and abs(shift) > share * abs(float(before.mean())):
        usual, value = float(expected.mean()), float(lately.mean())
        yield Finding(
            f"{name} has {'risen' if shift > 0 else 'fallen'} to {number(value)} and stays there, "
            f"{number(usual)} was to be expected",
            "scalar",
            name,
            value,
            low=usual - 3 * noise,
            high=usual + 3 * noise,
            scope="batch",
            strength=abs(shift) / max(abs(usual), 1e-12),
            # Where the two levels part best.
            since=step.number - int(np.argmax(np.abs(np.cumsum(off[::-1])) / np.sqrt(np.arange(1, LATELY + 1)))),
        )


@rule("relative", is_symptom=True, needs=" ".join(LOSSES))
def loss_swings(step: Step, times: float = 3.0, share: float = 0.1, steps: int = 6) -> Iterator[Finding]:
    """A loss that swings from step to step far more widely than it did.

    Why: batches that are unlike each other: rows sorted by label or source, a batch that has become too small.

    Next: Check that the loader still shuffles (`shuffle=True`, or `set_epoch` of the sampler), and that batches are as
    large as before.
    """
    name = _name(step)
    if name is None:
        return
    last = step.memory.get(f"loss_swings {name} last", Last()).swap_one("loss", step.scalars[name], step.number)
    if np.isnan(last):
        return
    swing = abs(step.scalars[name] - last)
    trend = step.memory.get(f"loss_swings {name}", Trend(linear=True, floor=1e-9))
    found = trend.follow("swing", swing, step.number)
    if found is None:
        return
    lately, usual = found.fast, found.usual
    is_wide = found.warmth >= 1.5 * WARM and lately > times * usual and lately > share * abs(last)
    count = step.memory.get(f"loss_swings {name} wide", Streak()).follow("swing", is_wide)
    if count >= steps:
        yield Finding(
            f"{name} swings by {number(lately)} from step to step, usually by {number(usual)}",
            "scalar",
            name,
            lately,
            high=times * usual,
            scope="batch",
            strength=float(np.log(lately / max(usual, 1e-12))),
            since=step.number - count + 1,
        )


def _line(at: Values, values: Values, where: Values) -> Values:
    """The straight line nearest to these values, at other places."""
    middle, level = at.mean(), values.mean()
    apart = at - middle
    line: Values = level + (apart @ (values - level)) / (apart @ apart) * (where - middle)
    return line


def _name(step: Step) -> str | None:
    """The plain number to look at: the model's own loss, the one logged, or what backward was called on.

    The last may be any objective. One that is not positive, as a policy's, has no level to leave.
    """
    name = next((known for known in (LOSS_LOCAL, LOSS, LOSS_BACKWARD) if known in step.scalars), None)
    if name is None or not np.isfinite(step.scalars[name]):
        return None
    return None if name == LOSS_BACKWARD and step.scalars[name] <= 0 else name
