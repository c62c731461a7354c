"""Ranks whose values differ from the others'."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.quantities import LOSS, LOSS_BACKWARD, LOSS_LOCAL
from vario.core.text import number
from vario.rules import Finding, RanksStep, rule
from vario.rules.api.series_state import Streak, Trend, Values

LOOKED_AT = (
    ("activation", "absmax"),
    ("activation", "rms"),
    ("gradient_local", "rms"),
    ("gradient_accumulated", "rms"),
)

LASTING = float(np.log(1.1))
"""A mean of the last eight losses is off this far from the others; it varies a quarter as much as one loss does."""
LASTS = 8
"""The steps it must be off for."""


@rule("relative", over="ranks", needs="activation gradient_local gradient_accumulated loss loss_local loss_backward")
def rank_outlier(step: RanksStep, threshold: float = 8.0, factor: float = 3.0, warm: int = 30) -> Iterator[Finding]:
    """A loss, activation or local gradient of one rank that differs from the other ranks in the same step.

    Why: ranks get different rows from the same distribution, so their values should be alike. One that differs alone
    has a bad batch, a faulty device, or a different model.

    Cause: only this rank differs: its data, or its device

    Points to: hardware 2, ranks 2, data 1.5

    Next: Look at that rank's batch of this step. If it is fine, check the rank's device, and that it runs the same
    model.
    """
    ranks = step.ranks
    if len(ranks) < 3:
        return
    for quantity, statistic in LOOKED_AT:
        names, values = step.table(quantity, statistic)
        if len(names):
            order = step.steps[ranks[0]].rows(quantity)
            places = dict(zip(order.targets, order.order, strict=True))
            for finding in _off(step, quantity, statistic, names, values, threshold, np.log(factor), warm):
                yield _placed(finding, float(places.get(finding.target or "", 0)))
    yield from _losses(step, threshold, float(np.log(factor)), warm)


def _off(
    step: RanksStep,
    quantity: str,
    statistic: str,
    names: tuple[str, ...],
    values: Values,
    threshold: float,
    size: float,
    warm: int,
) -> Iterator[Finding]:
    with np.errstate(all="ignore"):
        logs = np.log(values)
    logs = np.where(np.isfinite(logs), logs, np.nan)
    known = ~np.isnan(logs).all(axis=0)
    if quantity.startswith("gradient"):
        known &= step.steps[step.ranks[0]].facts.are_matrices(names)
    if not known.any():
        return
    away = np.full_like(logs, np.nan)
    away[:, known] = logs[:, known] - np.nanmedian(logs[:, known], axis=0)
    # One trend over (rank, target) pairs, on the distance from the others of the same step.
    trend = step.memory.get(f"rank_outlier {quantity} {statistic}", Trend(linear=True, floor=0.05))
    series = tuple(f"{rank}/{name}" for rank in step.ranks for name in names)
    found = trend.update(series, away.reshape(-1), step.number)
    flagged = (found.warmth >= warm) & (np.abs(found.z) > threshold) & (np.abs(found.distance) > size)
    flagged &= np.abs(found.distance) > 1.5 * found.peak
    for index in np.flatnonzero(flagged)[:32]:
        rank, name = step.ranks[index // len(names)], names[index % len(names)]
        value = float(values.reshape(-1)[index])
        others = float(np.nanmedian(values[:, index % len(names)]))
        yield Finding(
            f"{quantity.replace('_', ' ')} {statistic} of '{name}' is {number(value)} on rank {rank}, {number(others)} "
            "on the others",
            quantity,
            name,
            value,
            statistic,
            low=others,
            high=others,
            scope="rank",
            rank=rank,
            strength=abs(float(found.distance[index])),
        )


def _losses(step: RanksStep, threshold: float, size: float, warm: int) -> Iterator[Finding]:
    for name in (LOSS_LOCAL, LOSS, LOSS_BACKWARD):
        losses = {rank: step.steps[rank].scalars[name] for rank in step.ranks if name in step.steps[rank].scalars}
        if len(losses) > 2 and len(set(losses.values())) > 1:
            break
    else:
        return
    values = np.array(list(losses.values()))
    if not np.isfinite(values).any() or (values[np.isfinite(values)] <= 0).any():
        return
    middle = float(np.nanmedian(values))
    series = tuple(str(rank) for rank in losses)
    trend = step.memory.get("rank_outlier loss", Trend(linear=True, floor=0.02))
    found = trend.update(series, np.log(values / middle), step.number)
    # One batch that is far off must not look like several that are slightly off.
    several = step.memory.get("rank_outlier several", Trend(linear=True, floor=0.02))
    several.update(series, np.clip(np.log(values / middle), -5 * LASTING, 5 * LASTING), step.number)
    lasting = several.read("fast", series)
    means = np.abs(lasting) > np.maximum(1.5 * found.spread, LASTING)
    for_long = step.memory.get("rank_outlier lasting", Streak).update(series, means)
    for index, rank in enumerate(losses):
        is_lasting = for_long[index] >= LASTS
        # A low loss on one rank is just an easy batch.
        is_spike = found.z[index] > threshold and found.distance[index] > size
        if found.warmth[index] >= warm and (is_spike or is_lasting):
            yield Finding(
                f"{name} is {number(values[index])} on rank {rank}, {number(middle)} on the others",
                "scalar",
                name,
                values[index],
                low=middle,
                high=middle,
                scope="rank",
                rank=rank,
                strength=abs(float(found.distance[index])),
            )


def _placed(finding: Finding, order: float) -> Finding:
    return Finding(**{**finding.__dict__, "order": order})
