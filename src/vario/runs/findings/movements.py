"""Compares the end of many series with what came before, relative to their own spread and size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

LEAST_BASE = 8
"""The fewest points before the window to compare with."""
LEAST_SIZE = {"level": 0.1, "trend": 0.1, "spike": 0.4, "spread": 0.05}
"""Smaller changes do not matter, however regular the series was: logarithms of ratios, or shares."""
LEAST_DEVIATIONS = 5.0
FULL_DEVIATIONS = 10.0
"""A change of this many spreads counts fully."""
NON_FINITE, CONSTANT = 1000.0, 2.0
FLOORS = {"zeros": 0.005, "mean": 0.02}
LEAST_SPREAD = 0.01
"""The smallest spread: one per cent."""


@dataclass(frozen=True)
class Movement:
    """One series that changed."""

    row: int
    column: int
    """Where in the series it began."""
    kind: str
    before: float
    after: float
    score: float
    deviations: float


def find_movements(
    values: Values, bad: Flags, window: int, statistic: str, size: Values | None = None
) -> Iterator[Movement]:
    """Return the rows whose last `window` columns differ from those before; means are relative to `size`."""
    num_base = values.shape[1] - window
    if num_base < LEAST_BASE or window < 1 or not len(values):
        return
    with np.errstate(all="ignore"):
        x, is_log = scaled(values, statistic, size)
        fresh_bad = bad[:, num_base:].any(axis=1) & (bad[:, :num_base].mean(axis=1) < 0.5)
        is_constant = _became_constant(values, num_base) & ~fresh_bad & (statistic != "zeros")
        before, after = median(values[:, :num_base]), median(values[:, num_base:])
        for row in np.flatnonzero(fresh_bad):
            column = int(np.argmax(bad[row]))
            score = NON_FINITE * (2 - column / x.shape[1])
            yield Movement(int(row), column, "non-finite", float(before[row]), float("nan"), score, np.inf)
        for row in np.flatnonzero(is_constant):
            column = int(x.shape[1] - np.argmax(np.append(values[row, ::-1] != values[row, -1], True)))
            yield Movement(int(row), column, "constant", float(before[row]), float(after[row]), CONSTANT, np.inf)
        course = _follow(x, num_base, FLOORS.get(statistic, LEAST_SPREAD))
        kind, score, deviations = _worst(course)
        for row in np.flatnonzero((score > 0) & ~fresh_bad & ~is_constant):
            yield course.movement(int(row), KINDS[kind[row]], float(score[row]), float(deviations[row]), values, is_log)


KINDS = ("level", "trend", "spike", "spread")


@dataclass(frozen=True)
class _Course:
    """How the window of each series compares with what the base predicts."""

    num_base: int
    spread: Values
    """The spread around the base's trend line."""
    usual_peak: Values
    expected: Values
    off: Values
    """The distance of each point of the window from its prediction."""
    shift: Values
    ramp: Values
    end: Values
    at_peak: npt.NDArray[np.int64]
    noise: tuple[Values, Values]
    """The point-to-point noise, in the base and in the window."""

    @property
    def peak(self) -> Values:
        found: Values = self.off[np.arange(len(self.off)), self.at_peak]
        return found

    def movement(self, row: int, kind: str, score: float, deviations: float, values: Values, is_log: Flags) -> Movement:
        """Return one row in its own units."""
        series, off = values[row], self.off[row]
        before, after = float(median(series[None, : self.num_base])[0]), float(median(series[None, self.num_base :])[0])
        if kind == "spike":
            column = self.num_base + int(self.at_peak[row])
            kind = "spike" if off[self.at_peak[row]] > 0 else "drop"
            return Movement(row, column, kind, before, float(series[column]), score, deviations)
        if kind == "spread":
            quiet, loud = float(self.noise[0][row]), float(self.noise[1][row])
            return Movement(row, self.num_base, kind, quiet, loud, score, deviations)
        far = np.abs(off) > max(3 * self.spread[row], float(np.nanmax(np.abs(off))) / 4)
        begin = int(np.argmax(far))
        if kind == "trend":
            after = float(series[np.flatnonzero(np.isfinite(series))[-1]])
        if is_log[row]:
            before = float(np.exp(self.expected[row, begin]))
        return Movement(row, self.num_base + begin, kind, before, after, score, deviations)


def _follow(x: Values, num_base: int, floor: float) -> _Course:
    level, slope, spread, residual = _fit(x[:, :num_base])
    ahead = np.arange(num_base, x.shape[1]) - (num_base - 1) / 2
    expected = level[:, None] + slope[:, None] * ahead
    off = x[:, num_base:] - expected
    third = max(1, off.shape[1] // 3)
    shift, end = median(off), median(off[:, -third:])
    return _Course(
        num_base=num_base,
        spread=np.maximum(np.nan_to_num(spread), floor),
        usual_peak=np.nan_to_num(np.fmax.reduce(np.abs(residual), axis=1)),
        expected=expected,
        off=off,
        shift=shift,
        ramp=end - median(off[:, :third]),
        end=end,
        at_peak=np.argmax(np.nan_to_num(np.abs(off), nan=-1.0), axis=1),
        noise=(_noise(x[:, :num_base]), _noise(x[:, num_base:])),
    )


def _worst(course: _Course) -> tuple[npt.NDArray[np.int64], Values, Values]:
    """For each series the most significant kind of change, its score (0 if none), and its deviations."""
    size, ramp, peak = np.abs(course.shift), np.abs(course.ramp), np.abs(course.peak)
    before, after = course.noise
    # Less noise is rarely of interest.
    louder = np.where(after > before, after - before, (before - after) / 2)
    spread = course.spread
    sizes = np.stack(
        [
            size,
            np.where(ramp > size, np.abs(course.end), 0.0),
            # A change that is over counts half.
            np.where(peak > 1.5 * course.usual_peak, peak / 2, 0.0),
            np.where((after > 4 * before) | (after < before / 5), louder, 0.0),
        ]
    )
    # A changed spread is judged by its size alone: it is already relative to the usual one.
    deviations = np.nan_to_num(np.stack([size, ramp, peak, np.full_like(size, np.inf)]) / spread)
    least = np.array([LEAST_SIZE[kind] for kind in KINDS])[:, None]
    counts = (np.nan_to_num(sizes) > least) & (deviations > LEAST_DEVIATIONS)
    scores = np.where(counts, sizes * np.minimum(1.0, deviations / FULL_DEVIATIONS), 0.0)
    # Prefer the simplest kind, unless another scores clearly higher.
    kind = np.argmax(scores * np.array([1.2, 1.1, 1.0, 0.9])[:, None], axis=0)
    rows = np.arange(scores.shape[1])
    return kind, scores[kind, rows], deviations[kind, rows]


def _became_constant(values: Values, num_base: int) -> Flags:
    base, last = values[:, :num_base], values[:, num_base:]
    stands = (np.fmax.reduce(last, axis=1) == np.fmin.reduce(last, axis=1)) & ((~np.isnan(last)).sum(axis=1) >= 3)
    # A learning rate that changes in stages is constant most of the time.
    moved: Flags = (np.diff(base, axis=1) != 0).mean(axis=1) > 0.5
    found: Flags = stands & moved
    return found


def scaled(values: Values, statistic: str, size: Values | None) -> tuple[Values, Flags]:
    """Return numbers with comparable differences: logarithms of sizes, means relative to sizes, shares unchanged."""
    if statistic == "mean" and size is not None:
        return np.where(size > 0, values / size, np.nan), np.zeros(len(values), np.bool_)
    if statistic == "zeros":
        return values, np.zeros(len(values), np.bool_)
    finite = np.where(np.isfinite(values), values, np.nan)
    is_log = ~(np.fmin.reduce(finite, axis=1) < 0)
    logs = np.where(values > 0, np.log(values), np.nan)
    logs = np.where(np.isfinite(logs), logs, np.nan)
    scale = median(np.abs(finite))
    linear = finite / np.where(scale > 0, scale, 1.0)[:, None]
    return np.where(is_log[:, None], logs, linear), is_log


def _fit(base: Values) -> tuple[Values, Values, Values, Values]:
    """Level at the middle, slope, spread around both, and residuals; a slope that may be noise is 0."""
    length = base.shape[1]
    third = max(1, length // 3)
    at = np.arange(length) - (length - 1) / 2
    slope = (median(base[:, -third:]) - median(base[:, :third])) / max(1, length - third)
    level = median(base - slope[:, None] * at)
    residual = base - level[:, None] - slope[:, None] * at
    spread = 1.4826 * median(np.abs(residual))
    is_noise = ~(np.abs(slope) * length > 3 * spread)
    slope = np.where(is_noise, 0.0, slope)
    level = np.where(is_noise, median(base), level)
    residual = base - level[:, None] - slope[:, None] * at
    return level, slope, 1.4826 * median(np.abs(residual)), residual


def _noise(table: Values) -> Values:
    """The usual distance between consecutive points, independent of the long-term trend."""
    found: Values = 1.4826 * median(np.abs(np.diff(table, axis=1))) / np.sqrt(2)
    return found


def median(table: Values) -> Values:
    """Return the median of each row's numbers; NaN if it has none."""
    if not table.shape[1]:
        return np.full(len(table), np.nan)
    ordered = np.sort(table, axis=1)
    count = (~np.isnan(ordered)).sum(axis=1)
    rows = np.arange(len(table))
    low, high = np.maximum((count - 1) // 2, 0), np.minimum(count // 2, table.shape[1] - 1)
    found: Values = (ordered[rows, low] + ordered[rows, high]) / 2
    return np.where(count > 0, found, np.nan)
