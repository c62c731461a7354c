"""The tail of the largest scores: how often a threshold is passed by chance, and which threshold passes that often.

Scores stand on a grid (the largest tried threshold at which a rule still spoke), so counts between two places of the
grid are fitted, not values. Above the start of its tail, the share of scores beyond `t` is a generalised Pareto's,
which is what is left of any distribution's largest values: exponential at a shape of zero, heavier above.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

MOST_IN_TAIL = 30
"""The most scores that are fitted: the largest ones."""
SHAPES = np.arange(0.0, 0.51, 0.05)
"""Shapes that are tried: no tail is lighter than exponential, and none so heavy that it has no variance."""
USUAL_SHAPE = 0.2
LEAST_SCALE = 0.15
"""The thinnest tail, as a share of its start: a place of the grid."""
GROWTHS = np.arange(0.0, 1.01, 0.05)


@dataclass(frozen=True)
class Tail:
    """How often scores lie above a start, and how they fall off from there."""

    start: float
    rate: float
    """Of scores at or above the start, per 1,000 steps."""
    scale: float
    shape: float
    num: int
    """How many scores were fitted."""

    def rate_at(self, threshold: float) -> float:
        """How often per 1,000 steps scores reach a threshold above the start."""
        return self.rate * float(_beyond(np.array([threshold - self.start]), self.scale, self.shape)[0])

    def slope_at(self, threshold: float) -> float:
        """By how much a threshold must grow for the same rate, for each factor of e in how often scores are drawn."""
        return self.scale + self.shape * (threshold - self.start)

    def threshold_for(self, rate: float) -> float:
        """The threshold that scores reach so often; not below the start, where nothing was fitted."""
        if rate >= self.rate:
            return self.start
        fall = math.log(self.rate / rate)
        return self.start + self.scale * (fall if self.shape == 0 else math.expm1(self.shape * fall) / self.shape)


def fit(scores: Sequence[float], grid: Sequence[float], steps: int) -> Tail | None:
    """Fit the largest of these scores, each a place of the grid or 0; None if there are none."""
    found = np.sort(np.array([score for score in scores if score > 0]))
    if not len(found):
        return None
    places = np.array(sorted({*grid, *found.tolist()}))
    enough = found[max(0, len(found) - MOST_IN_TAIL)]
    start = float(places[places >= enough][0])
    tail = found[found >= start]
    above = np.append(places[places >= start], np.inf)
    counts = np.array([((tail >= low) & (tail < high)).sum() for low, high in itertools.pairwise(above)])
    best = (-math.inf, 1.0, 0.0)
    for shape in SHAPES:
        for scale in np.geomspace(start * LEAST_SCALE, start * 5, 200):
            shares = _beyond(above - start, float(scale), float(shape))
            chances = np.maximum(shares[:-1] - shares[1:], 1e-12)
            # A few scores say little of the shape: a heavy one has to be worth it.
            likelihood = float(counts @ np.log(chances)) - shape / USUAL_SHAPE
            if likelihood > best[0]:
                best = (likelihood, float(scale), float(shape))
    return Tail(start, 1000 * len(tail) / steps, best[1], best[2], len(tail))


def _beyond(excess: Values, scale: float, shape: float) -> Values:
    """The share of a generalised Pareto beyond these values."""
    with np.errstate(over="ignore", divide="ignore"):
        found: Values = np.exp(-excess / scale) if shape == 0 else (1 + shape * excess / scale) ** (-1 / shape)
    return found


def conformal(scores: Sequence[float], steps: Sequence[int], rate: float) -> float | None:
    """The smallest score that so few blocks pass that the next one does so at most at this rate; None: too few blocks.

    It assumes nothing about the tail, only that the next block is like these, and needs more than 1 / rate of them.
    """
    allowed = rate * sum(steps) / 1000 - 1
    if allowed < 0:
        return None
    return float(np.sort(np.array(scores))[::-1][int(allowed)])


def upper_rate(count: int, steps: int) -> float:
    """The rate per 1,000 steps that so few events rule out, at 95 %."""
    low, high = max(float(count), 1e-9), 10.0 + 3 * count
    for _ in range(60):
        middle = (low + high) / 2
        chance = sum(
            math.exp(-middle + number * math.log(middle) - math.lgamma(number + 1)) for number in range(count + 1)
        )
        low, high = (middle, high) if chance > 0.05 else (low, middle)
    return 1000 * high / steps


def growth(passed: Sequence[int], steps: Sequence[int], series: Sequence[int]) -> tuple[float, float]:
    """With which power of the number of series the rate grows (0: not at all, 1: each adds its own), and how unsure.

    A Poisson regression; the second number is how much less likely a power of 0 is, as a difference of logarithms.
    """
    count, time = np.array(passed, np.float64), np.array(steps, np.float64)
    size = np.log(np.maximum(np.array(series, np.float64), 1.0))
    if not count.sum():
        return 0.0, 0.0
    likelihoods = []
    for power in GROWTHS:
        expected = time * np.exp(power * size)
        expected *= count.sum() / expected.sum()
        likelihoods.append(float(count @ np.log(expected) - expected.sum()))
    best = int(np.argmax(likelihoods))
    return float(GROWTHS[best]), likelihoods[best] - likelihoods[0]
