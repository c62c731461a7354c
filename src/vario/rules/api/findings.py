"""From numbers to findings: which series deviate from their past, and whether they do so together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from vario.core.records import ROOT
from vario.core.text import number
from vario.rules.api.rule import Finding
from vario.rules.api.series_state import Deviation, Flags, Values

WARM = 40
"""The observations a series needs before it is compared with its past."""
MOST_TOLD = 16
"""The most targets one rule names in one step."""
COMMON_SHARE = 0.5
"""If more than this share of the tensors moves, the cause is common to them."""
HUGE = 1e3
"""A tensor this many times larger than usual did not get that way by learning."""
FEW = 4
"""Fewer tensors than this are not enough to infer a common cause."""


def left_the_past(deviation: Deviation, threshold: float, size: float, warm: int = WARM) -> Flags:
    """Flag series that are unusual (z), by a size that matters, further off than in the recent past, and suddenly."""
    off = np.abs(deviation.distance)
    at_once = np.sign(deviation.step_off) * np.sign(deviation.distance) * np.abs(deviation.step_off) > size / 2
    is_far = (off > size) & (off > 1.5 * deviation.peak)
    return (deviation.warmth >= warm) & (np.abs(deviation.z) > threshold) & is_far & at_once


def raised(threshold: float, growth: float, num_series: int) -> float:
    """The threshold for so many series: the more are looked at, the more often one of them passes it by chance."""
    return threshold + growth * max(0.0, math.log(max(1, num_series) / USUAL_SERIES))


USUAL_SERIES = 10
"""Thresholds hold for models with so many series of a quantity."""


def moved_together(deviation: Deviation, flagged: Flags, size: float, among: Flags | None = None) -> bool:
    """Whether most tensors show a weaker form of what the flagged ones show, which points to a common cause."""
    if not flagged.any():
        return False
    sign = np.sign(np.median(deviation.distance[flagged]))
    known = deviation.warmth >= YOUNG_ENOUGH
    if among is not None:
        known = known & among
    weaker = (np.sign(deviation.distance) == sign) & (
        (np.abs(deviation.z) > 3) | (np.abs(deviation.distance) > size / 2)
    )
    return bool(known.sum() >= FEW and weaker[known].mean() > COMMON_SHARE)


YOUNG_ENOUGH = 20


def tell(
    deviation: Deviation,
    flagged: Flags,
    quantity: str,
    statistic: str,
    what: str,
    *,
    together: bool = False,
    order: np.ndarray[tuple[int], np.dtype[np.int32]] | None = None,
    part: str = "",
    since: Values | None = None,
    drop: str = "",
) -> Iterator[Finding]:
    """Yield findings for the flagged series: one for all if they moved together, else one each, worst first.

    `drop` is the label of series that fell, if the rule's name does not fit them.
    """
    at = np.flatnonzero(flagged)
    if not len(at):
        return
    worst = at[np.argsort(-np.abs(deviation.distance[at]))]
    if together:
        middle = float(np.median(deviation.distance))
        times = f"{number(float(np.exp(abs(middle))), 3)} times {'above' if middle > 0 else 'below'}"
        has_dropped = bool(drop) and middle < 0
        moved = "fell" if has_dropped else "moved"
        yield Finding(
            text=f"{what} of most tensors {moved} together: {times} usual, most in '{deviation.targets[worst[0]]}'",
            quantity=quantity,
            statistic=statistic,
            value=middle,
            scope="global",
            strength=abs(middle),
            others=tuple(deviation.targets[index] for index in worst[:MOST_TOLD]),
            since=None if since is None else int(np.nanmin(since[at])),
            label=drop if has_dropped else "",
        )
        return
    for index in worst[:MOST_TOLD]:
        target = deviation.targets[index] + (f":{part}" if part else "")
        came_in = quantity == "activation" and target.startswith(f"{ROOT}:input")
        has_dropped = bool(drop) and float(deviation.distance[index]) < 0
        became = f"{'fell to' if has_dropped else 'is'} {number(deviation.values[index])}"
        yield Finding(
            text=f"{what} of '{target}' {became}, {compared(deviation, int(index))}",
            quantity=quantity,
            target=target,
            statistic=statistic,
            value=deviation.values[index],
            low=deviation.low(int(index)),
            high=deviation.high(int(index)),
            order=0.0 if order is None else float(order[index]),
            strength=abs(float(deviation.distance[index])),
            scope="batch" if came_in else "tensor",
            since=None if since is None else int(since[index]),
            label=drop if has_dropped else "",
        )


def common_name(names: Sequence[str]) -> str:
    """Return the common prefix of dotted names: the block they belong to."""
    shared = []
    for words in zip(*(name.partition(":")[0].split(".") for name in names), strict=False):
        if len(set(words)) > 1:
            break
        shared.append(words[0])
    return ".".join(shared)


def compared(deviation: Deviation, index: int) -> str:
    """Compare a value with its usual range, in words."""
    usual = f"{number(deviation.usual[index])} ({number(deviation.low(index))} to {number(deviation.high(index))})"
    if deviation.is_linear:
        return f"usually {usual}"
    ratio = deviation.ratio(index)
    times = f"{number(ratio, 3)} times" if ratio >= 1 else f"1/{number(1 / ratio, 3)} of"
    return f"{times} its usual {usual}"
