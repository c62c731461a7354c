"""Updates too large or too small for their weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Last, Streak, Values


@rule("limit", needs="update")
def update_high(step: Step, limit: float = 0.06, steps: int = 4) -> Iterator[Finding]:
    """Updates that are a large part of the weights they change.

    Why: a healthy update is about a thousandth of its weight. At a tenth the model forgets what it knew.

    Next: Lower the learning rate or lengthen its warm-up, and check weight decay.
    """
    ratios = _ratios(step)
    if not len(ratios):
        return
    middle = float(np.median(ratios))
    count = step.memory.get("update_high", Streak()).follow("all", middle > limit)
    if count >= steps:
        yield Finding(
            f"updates are {number(100 * middle, 3)} % of the weights (median of {len(ratios)} matrices)",
            "update",
            statistic="ratio",
            value=middle,
            high=limit,
            scope="global",
            strength=float(np.log(middle / limit)),
            since=step.number - count + 1,
        )


@rule("limit", needs="update lr")
def update_low(step: Step, limit: float = 1e-7, steps: int = 5) -> Iterator[Finding]:
    """Updates that are nothing beside the weights they change.

    Why: the run costs what it costs and learns nothing.

    Next: Check the learning rate with `vario show lr` and raise it if it is too low. If gradients are that small, lower
    the optimizer's `eps`.
    """
    ratios = _ratios(step)
    rate = step.scalars.get("lr", np.nan)
    if not len(ratios) and np.isnan(rate):
        return
    peak = step.memory.get("update_low", Last())
    row = peak.row("rate")
    known = peak["value"][row] = np.fmax(np.fmax(peak["value"][row], rate), 0.0)
    if not len(ratios) or step.was_skipped:
        return
    middle = float(np.median(ratios))
    # A schedule that ends at zero makes small updates, as it should.
    is_low = middle < limit and not rate < 0.01 * known
    count = step.memory.get("update_low streak", Streak()).follow("all", is_low)
    if count >= steps:
        yield Finding(
            f"updates are {number(middle)} of the weights (median of {len(ratios)} matrices)",
            "update",
            statistic="ratio",
            value=middle,
            low=limit,
            scope="global",
            strength=1.0,
            since=step.number - count + 1,
        )


@rule("limit", needs="update")
def update_uneven(step: Step, factor: float = 50.0, steps: int = 10) -> Iterator[Finding]:
    """A matrix that Adam moves far less than the others.

    Why: Adam moves all weights by about the learning rate. One that it moves fifty times less is in a group with
    another rate, or its gradients drown in eps.

    Next: Check the learning rate of the param group it is in. Then look at its gradients: `vario show NAME --quantity
    gradient --statistic rms`.
    """
    change, surprise = step.rows("update", "change"), step.rows("update", "surprise")
    if not len(surprise) or step.was_skipped:
        return
    adam = set(surprise.targets)
    sizes = change.statistic("rms")
    judged = step.facts.are_matrices(change.targets) & np.array([name in adam for name in change.targets], np.bool_)
    if judged.sum() < 4:
        return
    middle = float(np.median(sizes[judged]))
    is_low = judged & (sizes * factor < middle) & (sizes > 0)
    count = step.memory.get("update_uneven", Streak()).update(change.targets, is_low)
    for index in np.flatnonzero(count >= steps)[:16]:
        yield Finding(
            f"updates of '{change.targets[index]}' are {number(middle / sizes[index], 3)} times smaller than those of "
            "most matrices",
            "update",
            change.targets[index],
            float(sizes[index]),
            "rms",
            low=middle / factor,
            order=float(index),
            strength=float(np.log(middle / sizes[index])),
            since=step.number - int(count[index]) + 1,
        )


def _ratios(step: Step) -> Values:
    rows = step.rows("update", "ratio")
    values = rows.statistic("max")[step.facts.are_matrices(rows.targets)]
    found: Values = values[np.isfinite(values)]
    return found
