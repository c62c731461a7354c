"""Weights that something other than the optimizer changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vario.detection.memory import Flags, Last, Streak, Values
from vario.records import COUNT, ZEROS
from vario.rules import Finding, Rows, Step, rule
from vario.text import number

SLACK = 2.0
TOLERANCE = 2e-3
UNSEEN = 0.1
"""What updates that were not watched may have added: in bf16 most are nothing and one is a large step."""
FEW = 4


@rule("exact")
def unexplained_change(step: Step, clean_steps: int = 5) -> Iterator[Finding]:
    """A weight that changed while no optimizer ran, or by more than its optimizer's updates.

    Why: nothing else may change it: memory that was corrupted, a checkpoint loaded half way, code that writes weights.
    What the loop does to weights after every update, as clipping them, is known from its first steps and passed over.

    Next: Look at the code that ran between the two updates, for a checkpoint it loads or weights it writes. If one rank
    alone is named, check that rank's device.
    """
    moved = _stray(step, clean_steps)
    rows = step.rows("stray")
    sizes = rows.statistic("absmax")
    named = [rows.targets[index] for index in moved[np.argsort(-sizes[moved])]]
    changes = [
        f"'{rows.targets[index]}' changed by up to {number(sizes[index])} between two updates "
        f"({int(rows.summaries[index, COUNT] - rows.summaries[index, ZEROS])} of {int(rows.summaries[index, COUNT])} "
        "sampled elements)"
        for index in moved[np.argsort(-sizes[moved])]
    ]
    if not named:
        named, changes = _beyond_updates(step)
    everything = step.facts.trainable or step.rows("weight").targets
    matrices = [name for name in everything if len(step.facts.shapes.get(name, (1, 1))) > 1]
    most = max(1, min(len(everything), len(matrices)) / 2)
    if len(named) >= FEW - 1 and len(named) > most:
        text = f"{len(named)} weights changed behind the optimizer: {changes[0]}"
        yield Finding(text, "stray", None, scope="global", strength=1e3, others=tuple(named[:16]))
        return
    for place, (name, text) in enumerate(zip(named, changes, strict=True)):
        if place < 16:
            yield Finding(text, "stray", name, statistic="absmax", order=place, strength=100 - place)


def _stray(step: Step, clean_steps: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows of weights that changed between updates, where that is not what the loop does from its beginning on."""
    rows = step.rows("stray")
    watched = step.memory.get("unexplained_change", Last())
    begun = watched.read("value", ("begun",))[0]
    if np.isnan(begun):
        begun = float(step.number)
        watched.swap(("begun",), np.array([begun]), step.number)
    if not len(rows):
        return np.zeros(0, np.int64)
    # Rows are only there when something changed, so the first appearance decides: early is by design.
    habit = step.memory.get("unexplained_change habit", Streak())
    is_early = step.number - begun < clean_steps
    by_design = habit.update(rows.targets, np.full(len(rows), is_early) | (habit.read("count", rows.targets) > 0))
    return np.flatnonzero(by_design == 0)


def _beyond_updates(step: Step) -> tuple[list[str], list[str]]:
    """Weights whose norm, mean or extremes moved further than the updates since they were last seen can explain."""
    weights, ratio, change = step.rows("weight"), step.rows("update", "ratio"), step.rows("update", "change")
    if not len(weights) or not len(ratio) or step.was_skipped:
        return [], []
    names = weights.targets
    share = _largest_lately(step, "ratio", ratio.targets, ratio.statistic("max"), names)
    reach = _largest_lately(step, "change", change.targets, change.statistic("absmax"), names)
    norm = weights.statistic("norm")
    count = weights.summaries[:, 0]
    beyond: Flags = np.zeros(len(names), np.bool_)
    for statistic, scale in (("norm", np.ones(len(names))), ("mean", np.sqrt(count))):
        moved, steps = _moved(step, statistic, weights)
        allowed = SLACK * steps * share * norm + np.where(steps > 1, UNSEEN, TOLERANCE) * norm
        beyond |= scale * moved > allowed
    for statistic in ("min", "max"):
        moved, steps = _moved(step, statistic, weights)
        # Extremes are those of all elements, and updates those of a sample: the largest one may be missing.
        slack = np.where(steps > 1, 5 * UNSEEN, TOLERANCE) * np.abs(weights.statistic("absmax"))
        beyond |= moved > 10 * SLACK * steps * reach + slack + 1e-6
    at = [int(index) for index in np.flatnonzero(beyond & np.isfinite(share) & np.isfinite(norm))]
    return [names[index] for index in at], [
        f"'{names[index]}' moved further than its updates since it was last seen" for index in at
    ]


def _moved(step: Step, statistic: str, weights: Rows) -> tuple[Values, Values]:
    """How far a statistic of each weight has moved, and in how many steps; NaN where it is new."""
    now = weights.statistic(statistic)
    before, when = step.memory.get(f"unexplained_change {statistic}", Last()).swap(weights.targets, now, step.number)
    with np.errstate(invalid="ignore"):
        return np.abs(now - before), np.maximum(1.0, step.number - when)


def _largest_lately(step: Step, name: str, targets: Sequence[str], values: Values, wanted: Sequence[str]) -> Values:
    """The larger of this update and the one seen before it, for each weight; NaN where none was seen."""
    kept = step.memory.get(f"unexplained_change {name}", Last())
    before, _ = kept.swap(tuple(targets), values, step.number)
    found = dict(zip(targets, np.fmax(values, before), strict=True))
    return np.array([found.get(target, np.nan) for target in wanted])
