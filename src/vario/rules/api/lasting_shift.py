"""Whether the last few numbers of a noisy series lie at another level than the line through those before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vario.rules.api.series_state import Last, Memory, Values

LATELY = 8
"""How many numbers make a level."""
KEPT = tuple(f"{back} back" for back in reversed(range(56)))
"""The numbers that are remembered, newest last."""
LEAST_KNOWN = 32
SPIKES = 0.1
"""The largest share of numbers that may count as spikes."""
_WIDTH = sum((at - (len(KEPT) - LATELY - 1) / 2) ** 2 for at in range(len(KEPT) - LATELY))
"""The squared distances of all places before the last few from their middle."""
FURTHER = 1.5
"""How many times as far as any earlier mean of as many numbers a shift must be."""


@dataclass(frozen=True)
class LastingShift:
    """How far a series has moved from the line it followed."""

    size: float
    value: float
    """The mean of the last few numbers."""
    usual: float
    """What the line predicts for them."""
    noise: float
    level: float
    """The mean size of the numbers before."""
    looks_ago: int
    """How many numbers ago it began."""


def remembered(memory: Memory, name: str, value: float) -> Values:
    """Remember a number and return the last ones, this one included; NaN before the first."""
    kept = memory.get(name, Last)
    kept.at(KEPT)
    values = kept["value"][: len(KEPT)]
    values[:-1] = values[1:]
    values[-1] = value
    return values


def may_have_shifted(newest: Sequence[float], least: float | None, share: float, threshold: float) -> bool:
    """Whether `lasting_shift` can find a change of `least`, or of a share of the numbers before. Mostly it cannot.

    It never says no where `lasting_shift` would find one; it only takes a tenth of the time.
    """
    seen = newest[:-LATELY]
    if not math.isfinite(sum(seen)):
        seen = [value for value in seen if math.isfinite(value)]
    if len(seen) < LEAST_KNOWN:
        return False
    # A shift is no larger than the way from the level just before, which leaves out spikes, to the level now.
    num_spikes = math.ceil(SPIKES * len(seen)) - 1
    near, level = sorted(seen[-LATELY - num_spikes :]), _level(newest)
    furthest = max(level - sum(near[:LATELY]) / LATELY, sum(near[-LATELY:]) / LATELY - level)
    if not furthest > (share * max(min(seen), -max(seen)) if least is None else least):
        return False
    # The least error that extrapolating a line through so many numbers has, in units of their noise.
    reach = (LATELY + len(seen) - num_spikes) / 2
    error = math.sqrt(1 / LATELY + 1 / len(seen) + reach**2 / _WIDTH)
    return furthest > threshold * error * _least_noise(newest[:-LATELY], len(seen), num_spikes)


def _least_noise(before: Sequence[float], num_known: int, num_spikes: int) -> float:
    """The least that numbers can lie off any line through them, spikes aside, by their steps in pairs of neighbours."""
    steps = sorted(
        step for first, last in zip(before[::2], before[1::2], strict=True) if math.isfinite(step := last - first)
    )
    num_kept = len(steps) - num_spikes
    if num_kept < 2:
        return 0.0
    # A line has the same step everywhere; the closest to one are those next to each other in size.
    least, total, squares = math.inf, sum(steps[:num_kept]), sum([step * step for step in steps[:num_kept]])
    for out, come in zip(steps, [*steps[num_kept:], 0.0], strict=False):
        least = min(least, squares - total * total / num_kept)
        total += come - out
        squares += come * come - out * out
    # Two neighbours share their step: the sum of both squares is at least half of its square.
    return math.sqrt(max(least, 0.0) / 2 / (num_known - 2))


def lasting_shift(values: Values, threshold: float) -> LastingShift | None:
    """Compare the last numbers with the line through those before; None if the difference may be noise."""
    before, lately = values[:-LATELY], values[-LATELY:]
    when = np.arange(len(values), dtype=np.float64) - len(values)
    known = np.isfinite(before)
    # A series that falls moves away from its mean anyway, so compare with the line through it, without spikes.
    rest = (before - _line(when[:-LATELY][known], before[known], when[:-LATELY]))[known]
    rest -= np.median(rest)
    is_near = np.abs(rest) <= 6 * np.median(np.abs(rest))
    # Many of them are no spikes: losses of tiny batches have a long tail.
    known[known] = is_near if is_near.mean() > 1 - SPIKES else True
    at, before = when[:-LATELY][known], before[known]
    noise = max(float(np.std(before - _line(at, before, at), ddof=2)), 1e-3 * abs(float(before.mean())))
    expected = _line(at, before, when[-LATELY:])
    off = lately - expected
    shift = float(np.sort(off)[1:-1].mean())
    # What stops falling leaves the line but stays at its level.
    reached = _level(values.tolist()) - float(before[-LATELY:].mean())
    shift = float(np.sign(shift)) * min(abs(shift), max(0.0, float(np.sign(shift)) * reached))
    # The error of extrapolating the line, beside a mean of a few noisy numbers.
    reach = when[-LATELY:].mean() - at.mean()
    error = noise * np.sqrt(1 / LATELY + 1 / len(at) + reach**2 / (len(at) * at.var()))
    error *= _of_related(before - _line(at, before, at))
    is_off = off * np.sign(shift) > 1.5 * noise
    strayed = _strayed(values[:-LATELY], _line(at, before, when[:-LATELY]))
    if not abs(shift) > max(threshold * error, FURTHER * strayed) or is_off.sum() <= LATELY / 2:
        return None
    # The split that separates the two levels best.
    ago = int(np.argmax(np.abs(np.cumsum(off[::-1])) / np.sqrt(np.arange(1, LATELY + 1))))
    return LastingShift(shift, float(lately.mean()), float(expected.mean()), noise, abs(float(before.mean())), ago)


def _level(newest: Sequence[float]) -> float:
    # Without the lowest and the highest: one bad batch does not make a level.
    return sum(sorted(newest[-LATELY:])[1:-1]) / (LATELY - 2)


def _strayed(values: Values, line: Values) -> float:
    """The largest distance of a mean of a few numbers, without their extremes, from the line through all of them."""
    off = (values - line)[np.isfinite(values)]
    if len(off) < 2 * LATELY:
        return 0.0
    means = np.sort(np.lib.stride_tricks.sliding_window_view(off, LATELY), axis=1)[:, 1:-1].mean(axis=1)
    return float(np.abs(means).max())


def _of_related(rest: Values) -> float:
    """How much further a mean strays if each number resembles the one before, as with several steps on one task."""
    apart = float(rest @ rest)
    alike = float(rest[1:] @ rest[:-1]) / apart if apart > 0 else 0.0
    alike = min(max(alike, 0.0), 0.9)
    return math.sqrt((1 + alike) / (1 - alike))


def _line(at: Values, values: Values, where: Values) -> Values:
    """Fit a straight line to these values and evaluate it elsewhere."""
    middle, level = at.mean(), values.mean()
    apart = at - middle
    line: Values = level + (apart @ (values - level)) / (apart @ apart) * (where - middle)
    return line
