"""What each tensor of a run would lose in a lower precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vario.core.elements.bins import ZERO, Counts
from vario.core.elements.precision import (
    FORMATS,
    Bounds,
    Format,
    best_scales,
    largest,
    loss,
    num_nonzero,
    outlier_share,
    peak,
    quantile,
)
from vario.core.errors import ConfigError
from vario.core.text import unknown
from vario.runs.reader import Rank, RunReader
from vario.runs.views.tensors.distributions import NONE, quantities_with_bins, read_step

OUTLIER_FACTOR = 64.0
"""Elements this many times as large as the median count as outliers."""


@dataclass(frozen=True)
class Range:
    """A number that is known within bounds."""

    low: float
    high: float

    @property
    def is_exact(self) -> bool:
        """Whether the number is known."""
        return self.low == self.high


@dataclass(frozen=True)
class FormatLoss:
    """What one tensor would lose in one format, as shares of its elements that are neither zero nor NaN or Inf."""

    scale: int
    """It is multiplied by 2 to this power first."""
    flushed: Range
    """Rounded to zero."""
    subnormal: Range
    """Below the smallest normal number, those flushed included."""
    overflow: Range
    """Above the largest finite number."""


@dataclass(frozen=True)
class TensorPrecision:
    """One tensor's range of magnitudes, and what it would lose in each format."""

    quantity: str
    target: str
    step: int
    num_elements: int
    """Those that are neither zero nor NaN or Inf."""
    num_zeros: int
    """Exact zeros."""
    median: Range
    """Of the magnitudes that are not zero."""
    largest: Range
    peak: Range
    """The largest magnitude over the median."""
    outliers: Range
    """The share more than 64 times as large as the median."""
    as_is: dict[str, FormatLoss]
    """By format, without a scale."""
    scaled: dict[str, FormatLoss]
    """By format, with the power of two that loses least."""


@dataclass(frozen=True)
class PrecisionTable:
    """What each tensor would lose, by quantity and in the order of observation."""

    steps: dict[str, int]
    """The step each quantity was read at."""
    tensors: list[TensorPrecision]


def precision_table(
    run: RunReader, quantity: str | None = None, step: int | None = None, rank: Rank = "all"
) -> PrecisionTable:
    """Read distributions at a step (default: the latest of each quantity); raises ConfigError if there are none."""
    recorded = quantities_with_bins(run)
    if quantity is not None and quantity not in recorded:
        raise ConfigError(unknown("quantity", quantity, recorded))
    steps: dict[str, int] = {}
    tensors: list[TensorPrecision] = []
    for name in recorded if quantity is None else [quantity]:
        found = read_step(run, name, step, rank)
        if found is not None:
            steps[name] = found.step
            tensors += tensor_precisions(name, found.step, found.targets, found.counts)
    if not steps:
        where = "" if step is None else f" at step {step}"
        raise ConfigError(f"precision: {run.path}{where}: {NONE}")
    return PrecisionTable(steps, tensors)


def tensor_precisions(quantity: str, step: int, targets: Sequence[str], counts: Counts) -> list[TensorPrecision]:
    """Return what tensors would lose, from their distributions."""
    nonzero = counts.copy()
    nonzero[:, ZERO] = 0
    numbers, medians, tops = num_nonzero(counts), quantile(nonzero, 0.5), largest(nonzero)
    peaks, outliers = peak(counts), outlier_share(counts, OUTLIER_FACTOR)
    plain = {name: _as_is(counts, to) for name, to in FORMATS.items()}
    scaled = {name: _scaled(counts, to) for name, to in FORMATS.items()}
    return [
        TensorPrecision(
            quantity=quantity,
            target=target,
            step=step,
            num_elements=int(numbers[at]),
            num_zeros=int(counts[at, ZERO]),
            median=_range(medians, at),
            largest=_range(tops, at),
            peak=_range(peaks, at),
            outliers=_range(outliers, at),
            as_is={name: found[at] for name, found in plain.items()},
            scaled={name: found[at] for name, found in scaled.items()},
        )
        for at, target in enumerate(targets)
    ]


def _as_is(counts: Counts, to: Format) -> list[FormatLoss]:
    return _losses(counts, to, np.zeros(len(counts), np.int64))


def _scaled(counts: Counts, to: Format) -> list[FormatLoss]:
    return _losses(counts, to, best_scales(counts, to))


def _losses(counts: Counts, to: Format, scales: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[FormatLoss]:
    found: list[FormatLoss | None] = [None] * len(counts)
    for scale in np.unique(scales).tolist():
        rows = np.flatnonzero(scales == scale)
        lost = loss(counts[rows], to, scale)
        for at, row in enumerate(rows.tolist()):
            found[row] = FormatLoss(
                scale, _range(lost.flushed, at), _range(lost.subnormal, at), _range(lost.overflow, at)
            )
    return [one for one in found if one is not None]


def _range(bounds: Bounds, at: int) -> Range:
    return Range(float(bounds.low[at]), float(bounds.high[at]))


BRIEF_FORMATS = (("fp16", False), ("e4m3", True))
"""What a report mentions: fp16 as it is, fp8 with the best scale of each tensor."""
LEAST_ELEMENTS = 100
"""A report does not mention smaller tensors."""
LEAST_SHARE = 1e-3
CAST = ("gradient", "weight", "activation", "activation_gradient")
"""Quantities that are cast in low-precision training."""
OWNERS = {"activation_gradient": "activation gradients", "activation": "values"}


@dataclass(frozen=True)
class PrecisionBrief:
    """The tensor that loses most in each of some formats."""

    lines: list[str]


def precision_brief(run: RunReader) -> PrecisionBrief | None:
    """Return what a report says about lower precisions; None if no distributions were recorded."""
    if not quantities_with_bins(run):
        return None
    try:
        table = precision_table(run)
    except ConfigError:
        return None
    tensors = [one for one in table.tensors if one.quantity in CAST and one.num_elements >= LEAST_ELEMENTS]
    if not tensors:
        return None
    worst = [(name, scaled, _worst(tensors, name, scaled)) for name, scaled in BRIEF_FORMATS]
    lines = [line for name, scaled, one in worst if (line := _worst_line(one, name, scaled))]
    if not lines:
        formats = " or ".join(_label(name, scaled) for name, scaled in BRIEF_FORMATS)
        return PrecisionBrief(
            [f"no tensor would lose more than {100 * LEAST_SHARE:.2g} % of its elements in {formats}"]
        )
    return PrecisionBrief(lines)


def lost(found: FormatLoss) -> Range:
    """Return the share that is rounded to zero or too large."""
    return Range(found.flushed.low + found.overflow.low, found.flushed.high + found.overflow.high)


def _label(name: str, scaled: bool) -> str:
    return f"scaled {FORMATS[name].label}" if scaled else FORMATS[name].label


def _worst(tensors: Sequence[TensorPrecision], name: str, scaled: bool) -> TensorPrecision:
    return max(tensors, key=lambda one: lost((one.scaled if scaled else one.as_is)[name]).low)


def _worst_line(one: TensorPrecision, name: str, scaled: bool) -> str:
    """Return what a tensor would lose; empty if that is next to nothing."""
    found = (one.scaled if scaled else one.as_is)[name]
    if not lost(found).low >= LEAST_SHARE:
        return ""
    whose = f"{one.target}'s {OWNERS.get(one.quantity, f'{one.quantity}s')}"
    if found.flushed.low >= found.overflow.low:
        return f"{share_text(found.flushed)} of {whose} would flush to zero in {_label(name, scaled)}"
    return f"{share_text(found.overflow)} of {whose} would overflow in {_label(name, scaled)}"


def share_text(share: Range) -> str:
    """Return a share as a percentage, or as bounds where it is not known exactly."""
    low, high = _percent(share.low), _percent(share.high)
    if low == high:
        return f"{low} %"
    return f"up to {high} %" if share.low == 0 else f"{low} to {high} %"


def _percent(share: float) -> str:
    text = f"{100 * share:.2g}" if share < 0.995 else f"{100 * share:.3g}"
    return "0" if share == 0 else text if share >= 1e-5 else "<0.001"
