"""Experts that get too many tokens, or none."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Streak, Trend

RELIEF = 0.8
"""How far a load must come back from its limit to be within it again."""


@rule("limit", needs="expert", chart="load")
def expert_imbalance(
    step: Step, limit: float = 1.0, starved: float = 0.1, rise: float = 0.25, times: float = 2.5, warm: int = 30
) -> Iterator[Finding]:
    """A router that sends most tokens to one expert, or none to another.

    Why: an expert without tokens does not learn, and one that gets most of them becomes the bottleneck.

    Cause: the router's balance loss or bias is too weak for its logits

    Points to: module 3, optimizer 1

    Next: Check that the router's balance loss or bias is enabled, and make it stronger. Then look at the router's
    logits and at all loads: `vario show '*:load' --quantity expert --statistic max`.
    """
    rows = step.rows("expert", "load")
    if not len(rows):
        return
    most, least = rows.statistic("max") - 1, rows.statistic("min")
    high = step.memory.get("expert_imbalance most", Trend(linear=True))
    low = step.memory.get("expert_imbalance least", Trend(linear=True))
    found = high.update(rows.targets, most)
    low.update(rows.targets, least)
    mean_most, mean_least = high.read("fast", rows.targets), low.read("fast", rows.targets)
    # With few experts each one has a large share and no load reaches twice the mean, so the rise counts there.
    rose = (found.gap > rise) & (found.gap > times * found.usual_gap)
    # A load that swings about its limit is over it once.
    told = step.memory.get("expert_imbalance told", Streak)
    was_told = told.read("count", rows.targets) > 0
    is_known = found.age >= warm
    is_over = is_known & (mean_most > limit * np.where(was_told, RELIEF, 1.0))
    is_starved = is_known & (mean_least < starved / np.where(was_told, RELIEF, 1.0))
    told.update(rows.targets, is_over | is_starved)
    for index in np.flatnonzero(is_over | is_starved | (is_known & rose))[:16]:
        over = bool(is_over[index] or rose[index])
        text = (
            f"router '{rows.targets[index]}' sends {number(1 + mean_most[index], 3)} times the mean load to one expert"
            if over
            else f"router '{rows.targets[index]}' sends one expert only {number(mean_least[index], 3)} of the mean load"
        )
        yield Finding(
            text,
            "expert",
            rows.targets[index],
            float(mean_most[index] if over else mean_least[index]),
            "max" if over else "min",
            high=limit if over else None,
            low=None if over else starved,
            order=float(rows.order[index]),
            strength=float(mean_most[index]),
        )
