"""What tensors would lose in a lower precision, from their distributions: see `vario.core.elements.bins`.

All shares are of the elements that are neither zero nor NaN or Inf. A result is two numbers, the lowest and the highest
that it can be. They are equal where the limits of a format are edges of bins: always for its small numbers under a
scale that is a power of two, and for its largest number without a scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vario.core.elements.bins import EDGES, HIGHEST, IS_SPLIT, LOWEST, ZERO, Counts, by_cell

Values = npt.NDArray[np.float64]

SCALES = range(LOWEST, HIGHEST + 1)
"""The exponents of scales that are tried."""
_LOW, _HIGH = EDGES[:-1], EDGES[1:]
"""The ends of the cells."""


@dataclass(frozen=True)
class Format:
    """A floating-point format."""

    name: str
    label: str
    largest: float
    normal: int
    """Exponent of the smallest normal number; smaller ones have fewer digits."""
    subnormal: int
    """Exponent of the smallest number of all."""

    @property
    def flushed_below(self) -> float:
        """What is smaller is rounded to zero, and so is this number itself: half of the smallest number."""
        return math.ldexp(1.0, self.subnormal - 1)


FORMATS = {
    found.name: found
    for found in (
        Format("fp16", "fp16", 65_504.0, -14, -24),
        Format("bf16", "bf16", float(2.0**128 - 2.0**120), -126, -133),
        Format("e4m3", "fp8 e4m3", 448.0, -6, -9),
        Format("e5m2", "fp8 e5m2", 57_344.0, -14, -16),
    )
}


class Bounds(NamedTuple):
    """The lowest and the highest that a number can be, for each of some distributions."""

    low: Values
    high: Values

    @property
    def is_exact(self) -> bool:
        """Whether both are the same everywhere."""
        return bool(np.array_equal(self.low, self.high, equal_nan=True))


@dataclass(frozen=True)
class Loss:
    """What tensors lose in one format, as shares."""

    flushed: Bounds
    """Smaller than half of the smallest number: rounded to zero."""
    subnormal: Bounds
    """Smaller than the smallest normal number, those flushed included: digits are lost."""
    overflow: Bounds
    """Larger than the largest finite number."""

    @property
    def lost(self) -> Bounds:
        """Flushed to zero or too large."""
        return Bounds(self.flushed.low + self.overflow.low, self.flushed.high + self.overflow.high)


def num_nonzero(counts: Counts) -> Values:
    """Return how many elements are neither zero nor NaN or Inf."""
    return np.asarray(by_cell(counts).sum(axis=-1), np.float64)


def share_below(counts: Counts, magnitude: float) -> Bounds:
    """Return the share of elements with a smaller magnitude."""
    # An end that belongs to the cell below it is not smaller than itself.
    return _shares(counts, np.where(IS_SPLIT[1:], magnitude > _HIGH, magnitude >= _HIGH), magnitude > _LOW)


def share_above(counts: Counts, magnitude: float) -> Bounds:
    """Return the share of elements with a larger magnitude."""
    # Elements at the lower end of a cell are not larger, unless the end belongs to the cell below.
    surely = np.where(IS_SPLIT[:-1], magnitude <= _LOW, magnitude < _LOW)
    maybe = magnitude < _HIGH
    return _shares(counts, surely, maybe)


def _shares(counts: Counts, surely: npt.NDArray[np.bool_], maybe: npt.NDArray[np.bool_]) -> Bounds:
    cells = by_cell(counts).astype(np.float64)
    with np.errstate(invalid="ignore"):
        whole = cells.sum(axis=-1)
        return Bounds(cells @ surely / whole, cells @ maybe / whole)


def loss(counts: Counts, to: Format, scale: int = 0) -> Loss:
    """Return what tensors times 2^scale lose in a format; NaN for one without elements that are not zero."""
    return Loss(
        share_below(counts, math.ldexp(to.flushed_below, -scale)),
        share_below(counts, math.ldexp(1.0, to.normal - scale)),
        share_above(counts, _ldexp(to.largest, -scale)),
    )


def best_scales(counts: Counts, to: Format) -> npt.NDArray[np.int64]:
    """Return for each tensor the exponent of the power of two that loses least in a format.

    Of those that lose the same it is the one that keeps most digits, and then the one closest to 1.
    """
    tried = sorted(SCALES, key=abs)
    results = [loss(counts, to, scale) for scale in tried]
    lost = np.nan_to_num(np.stack([found.lost.high for found in results]))
    digits = np.nan_to_num(np.stack([found.subnormal.high for found in results]))
    best = np.lexsort((np.broadcast_to(np.arange(len(tried))[:, None], lost.shape), digits, lost), axis=0)[0]
    found: npt.NDArray[np.int64] = np.asarray(tried, np.int64)[best]
    return found


def quantile(counts: Counts, share: float) -> Bounds:
    """Return a magnitude that this share of the finite elements, zeros included, does not exceed."""
    cells = np.concatenate([counts[..., ZERO, None], by_cell(counts)], axis=-1)
    whole = cells.sum(axis=-1)
    # The number of the element in ascending order, from 1, as numpy's method 'inverted_cdf' has it.
    nth = np.maximum(1, np.ceil(share * whole))
    place = (np.cumsum(cells, axis=-1) < nth[..., None]).sum(axis=-1)
    place = np.minimum(place, len(_LOW))
    low, high = np.concatenate([[0.0], _LOW])[place], np.concatenate([[0.0], _HIGH])[place]
    return Bounds(np.where(whole > 0, low, np.nan), np.where(whole > 0, high, np.nan))


def largest(counts: Counts) -> Bounds:
    """Return the largest finite magnitude."""
    return quantile(counts, 1.0)


def peak(counts: Counts, absmax: Values | None = None) -> Bounds:
    """Return the largest magnitude over the median of those that are not zero; `absmax` is the exact one, if known."""
    nonzero = counts.copy()
    nonzero[..., ZERO] = 0
    median = quantile(nonzero, 0.5)
    top = largest(nonzero) if absmax is None else Bounds(absmax, absmax)
    with np.errstate(divide="ignore", invalid="ignore"):
        return Bounds(top.low / median.high, top.high / median.low)


def outlier_share(counts: Counts, factor: float) -> Bounds:
    """Return the share of elements that are more than this many times as large as the median magnitude.

    `factor` is a power of two. The median is of elements that are not zero.
    """
    nonzero = np.atleast_2d(counts).copy()
    nonzero[..., ZERO] = 0
    median = quantile(nonzero, 0.5)
    low = [share_above(row, factor * m).low for row, m in zip(nonzero, median.high.tolist(), strict=True)]
    high = [share_above(row, factor * m).high for row, m in zip(nonzero, median.low.tolist(), strict=True)]
    return Bounds(np.array(low), np.array(high))


def _ldexp(value: float, exponent: int) -> float:
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.inf
