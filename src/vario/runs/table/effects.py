"""Which settings mattered: how a result of many runs goes along with each hyper-parameter in which they differ.

This is correlation, not proof: settings that were always changed together cannot be told apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vario.core.text import number
from vario.runs.table.columns import Column, Columns, Value, order_key
from vario.runs.table.summary import RunSummary
from vario.runs.table.table import group_text

Values = npt.NDArray[np.float64]

LEAST_RUNS = 3
"""With fewer runs nothing is said."""
WIDE = 20.0
"""A positive setting whose largest value is this many times the smallest is seen on a logarithmic scale."""
MOST_MEANS = 12
"""The most values of a setting whose mean result is listed."""


@dataclass(frozen=True)
class Effect:
    """One setting and the result."""

    setting: Column
    num_runs: int
    """Runs that have both."""
    correlation: float | None
    """Spearman's rank correlation, for a number; None where it cannot be told."""
    linear: float | None
    """Pearson's correlation; with the logarithm of the setting if `is_log`."""
    share: float | None
    """Of a setting that is no number: the share of the variance between its values."""
    is_log: bool
    means: tuple[tuple[str, float, int], ...]
    """By value: the mean result and the number of runs, if there are few values."""
    same_as: tuple[str, ...]
    """Other settings that change exactly with this one."""
    text: str

    @property
    def importance(self) -> float:
        """From 0 to 1; of texts the root of the share, which compares with a correlation."""
        if self.share is not None:
            return math.sqrt(self.share)
        return 0.0 if self.correlation is None else abs(self.correlation)


@dataclass(frozen=True)
class Effects:
    """What mattered for a result."""

    result: Column
    runs: tuple[RunSummary, ...]
    """Those that have the result."""
    effects: tuple[Effect, ...]
    """What mattered most first."""


def find_effects(runs: Sequence[RunSummary], columns: Columns, result: str) -> Effects:
    """Return how a result goes along with each setting in which these runs differ."""
    column = columns.find(result, "result")
    having = [run for run in runs if _as_number(column.read(run)) is not None]
    targets = np.array([_as_number(column.read(run)) for run in having], np.float64)
    settings: dict[tuple[object, ...], list[Column]] = {}
    for setting in Columns(having).settings():
        settings.setdefault(tuple(_code([setting.read(run) for run in having])), []).append(setting)
    found = [_effect(same, having, targets, column) for same in settings.values()]
    return Effects(column, tuple(having), tuple(sorted(found, key=lambda effect: -effect.importance)))


def _effect(same: Sequence[Column], runs: Sequence[RunSummary], targets: Values, result: Column) -> Effect:
    setting = same[0]
    values = [setting.read(run) for run in runs]
    known = np.array([value is not None for value in values])
    kept, reached = [value for value in values if value is not None], targets[known]
    means = _means(kept, reached)
    others = tuple(column.key for column in same[1:])
    if setting.kind == "text":
        share = _share(kept, reached)
        return Effect(
            setting, len(kept), None, None, share, False, means, others, _texts_text(share, len(kept), means, result)
        )
    numbers = np.array([float(value) for value in kept])
    is_log = bool(len(numbers) and numbers.min() > 0 and numbers.max() / numbers.min() > WIDE)
    rank = correlation(_ranks(numbers), _ranks(reached))
    linear = correlation(np.log(numbers) if is_log else numbers, reached)
    text = _number_text(rank, linear, is_log, len(kept), means, result)
    return Effect(setting, len(kept), rank, linear, None, is_log, means, others, text)


def correlation(a: Values, b: Values) -> float | None:
    """Pearson's correlation; None for few values or where one does not vary."""
    if len(a) < LEAST_RUNS or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.clip(np.corrcoef(a, b)[0, 1], -1, 1))


def _ranks(values: Values) -> Values:
    """Ranks; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Values = (ends - (counts - 1) / 2.0)[inverse.reshape(-1)]
    return ranks


def _share(values: Sequence[Value], targets: Values) -> float | None:
    """The share of the variance that lies between the values of a setting (eta squared)."""
    total = float(((targets - targets.mean()) ** 2).sum()) if len(targets) >= LEAST_RUNS else 0.0
    if total == 0:
        return None
    codes = np.array(_code(values))
    between = 0.0
    for code in np.unique(codes):
        inside = targets[codes == code]
        between += len(inside) * float(inside.mean() - targets.mean()) ** 2
    return min(1.0, between / total)


def _means(values: Sequence[Value], targets: Values) -> tuple[tuple[str, float, int], ...]:
    distinct = sorted(set(values), key=order_key)
    if len(distinct) > MOST_MEANS:
        return ()
    chosen = [np.array([value == each for value in values]) for each in distinct]
    return tuple(
        (group_text(each), float(targets[mask].mean()), int(mask.sum()))
        for each, mask in zip(distinct, chosen, strict=True)
    )


def _number_text(
    rank: float | None,
    linear: float | None,
    is_log: bool,
    num_runs: int,
    means: tuple[tuple[str, float, int], ...],
    result: Column,
) -> str:
    if rank is None:
        return f"{num_runs} runs: too few, or all alike, to say anything."
    scale = " with its logarithm" if is_log else ""
    told = f"Rank correlation {rank:+.2f} over {num_runs} runs"
    told += "" if linear is None else f" (linear{scale} {linear:+.2f})"
    if abs(rank) < 0.2:
        told += ": hardly any"
    return f"{told}.{_best_text(means, result.is_better_higher)}"


def _texts_text(share: float | None, num_runs: int, means: tuple[tuple[str, float, int], ...], result: Column) -> str:
    if share is None:
        return f"{num_runs} runs: too few, or all alike, to say anything."
    best = _best_text(means, result.is_better_higher)
    return f"Explains {100 * share:.0f} % of the variance over {num_runs} runs.{best}"


def _best_text(means: tuple[tuple[str, float, int], ...], is_higher: bool | None) -> str:
    if len(means) < 2:
        return ""
    best = (max if is_higher else min)(means, key=lambda each: each[1])
    word = "Highest" if is_higher else "Lowest"
    return f" {word} mean {number(best[1])} at {best[0]} ({best[2]} runs)."


def _code(values: Sequence[Value]) -> list[int]:
    known: dict[str, int] = {}
    return [known.setdefault(repr(value), len(known)) for value in values]


def _as_number(value: Value) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)
