"""Weights that something other than the optimizer changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from vario.core.records import COUNT, ZEROS
from vario.core.text import number
from vario.rules import Finding, Rows, Step, rule
from vario.rules.api.alerts import Severity
from vario.rules.api.series_state import Flags, Last, Streak, Values

SLACK = 2.0
TOLERANCE = 2e-3
UNSEEN = 0.1
"""What updates that were not watched may have added: in bf16 most are nothing and one is a large step."""
FEW = 4
UPDATES = 10
"""A change within the reach of so many updates is what loops do themselves: clamping, averaging, going back."""
ROUNDING = {"float64": 1e-14, "bfloat16": 0.03, "float16": 4e-3}
"""Beside the largest element of a weight: what is left when something is added and taken away again."""


@rule("exact")
def unexplained_change(step: Step, clean_steps: int = 5) -> Iterator[Finding]:
    """A weight that changed while no optimizer ran, or by more than its optimizer's updates.

    Why: nothing else may change it: memory that was corrupted, a checkpoint loaded half way, code that writes weights.
    What the loop does to weights after every update, as clipping them, is known from its first steps and passed over,
    and so is rounding. Weights that all change together, or by no more than a few updates do, were written by the
    loop: that is only noted. So is a weight that moved further than the updates that were watched can explain.

    Next: Look at the code that ran between the two updates, for a checkpoint it loads or weights it writes. If one rank
    alone is named, check that rank's device.
    """
    moved = _stray(step, clean_steps)
    if not len(moved) and "update" not in step.quantities:
        return  # nothing to explain, and nothing to explain it by
    reach = _reach(step)
    rows = step.rows("stray")
    sizes = rows.statistic("absmax")
    order = moved[np.argsort(-sizes[moved])]
    changes = {
        rows.targets[index]: f"'{rows.targets[index]}' changed by up to {number(sizes[index])} between two updates "
        f"({int(rows.summaries[index, COUNT] - rows.summaries[index, ZEROS])} of {int(rows.summaries[index, COUNT])} "
        "sampled elements)"
        for index in order
    }
    # One whose updates were never seen has no reach, and then any change is beyond it.
    is_far = {rows.targets[index]: not sizes[index] <= UPDATES * reach.get(rows.targets[index], 0.0) for index in order}
    beyond = _beyond_updates(step, reach)
    if not changes:
        changes = {name: f"'{name}' moved further than its updates since it was last seen" for name in beyond}
    if _are_most(step, list(changes)):
        text = f"{len(changes)} weights changed behind the optimizer: {next(iter(changes.values()))}"
        others = tuple(list(changes)[:16])
        yield Finding(text, "stray", None, scope="global", strength=1e3, others=others, severity="note")
        return
    for place, (name, text) in enumerate(changes.items()):
        if place < 16:
            severity: Severity = "page" if is_far.get(name) else "note"
            yield Finding(text, "stray", name, statistic="absmax", order=place, strength=100 - place, severity=severity)


def _are_most(step: Step, names: Sequence[str]) -> bool:
    """Whether these are most of the weights: one hand has written them all."""
    everything = step.facts.trainable or step.rows("weight").targets
    matrices = [name for name in everything if len(step.facts.shapes.get(name, (1, 1))) > 1]
    most = max(1, min(len(everything), len(matrices)) / 2)
    return (len(names) >= FEW - 1 and len(names) > most) or len(names) == len(everything) > 1


def _reach(step: Step) -> dict[str, float]:
    """The largest change of an element by the latest updates that were watched, for each weight."""
    change = step.rows("update", "change")
    kept = step.memory.get("unexplained_change reach", Last())
    if len(change):
        sizes = change.statistic("absmax")
        before, _ = kept.swap(change.targets, sizes, step.number)
        return dict(zip(change.targets, np.fmax(sizes, before).tolist(), strict=True))
    return dict(zip(kept.names, kept.read("value", kept.names).tolist(), strict=True))


def _stray(step: Step, clean_steps: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows of weights that changed between updates, where that is not what the loop does from its beginning on."""
    watched = step.memory.get("unexplained_change", Last())
    row = watched.row("begun")
    if np.isnan(begun := watched["value"].item(row)):
        begun = watched["value"][row] = float(step.number)
    if step.quantities.isdisjoint(("stray", "weight")):
        return np.zeros(0, np.int64)
    rows = step.rows("stray")
    weights = step.rows("weight")
    largest = step.memory.get("unexplained_change largest", Last())
    known = largest.read("value", rows.targets)
    if len(weights):
        largest.swap(weights.targets, weights.statistic("absmax"), step.number)
    if not len(rows):
        return np.zeros(0, np.int64)
    # Rows are only there when something changed, so the first appearance decides: early is by design.
    habit = step.memory.get("unexplained_change habit", Streak())
    is_early = step.number - begun < clean_steps
    by_design = habit.update(rows.targets, np.full(len(rows), is_early) | (habit.read("count", rows.targets) > 0))
    rounding = np.array(
        [ROUNDING.get(step.facts.dtypes.get(name, "").removeprefix("torch."), 1e-6) for name in rows.targets]
    )
    is_rounding = rows.statistic("absmax") <= rounding * np.nan_to_num(known)
    return np.flatnonzero((by_design == 0) & ~is_rounding)


def _beyond_updates(step: Step, reach: Mapping[str, float]) -> list[str]:
    """Weights whose norm, mean or extremes moved further than the updates since they were last seen can explain.

    Of a large weight only a sample of its updates is known, and most updates were not watched: a hint, not a proof.
    """
    weights, change = step.rows("weight"), step.rows("update", "change")
    if not len(weights) or not len(change) or step.was_skipped:
        return []
    names = weights.targets
    count = weights.summaries[:, COUNT]
    # The length of a whole update, from that of its sample.
    share = np.sqrt(count * _largest_lately(step, change.targets, change.statistic("rms") ** 2, names))
    widest = np.array([reach.get(name, np.nan) for name in names])
    norm = weights.statistic("norm")
    beyond: Flags = np.zeros(len(names), np.bool_)
    for statistic, scale in (("norm", np.ones(len(names))), ("mean", np.sqrt(count))):
        moved, steps = _moved(step, statistic, weights)
        allowed = SLACK * steps * share + np.where(steps > 1, UNSEEN, TOLERANCE) * norm
        beyond |= scale * moved > allowed
    for statistic in ("min", "max"):
        moved, steps = _moved(step, statistic, weights)
        # Extremes are those of all elements, and updates those of a sample: the largest one may be missing.
        slack = np.where(steps > 1, 5 * UNSEEN, TOLERANCE) * np.abs(weights.statistic("absmax"))
        beyond |= moved > 10 * SLACK * steps * widest + slack + 1e-6
    by_design = step.memory.get("unexplained_change habit", Streak()).read("count", names) > 0
    return [names[index] for index in np.flatnonzero(beyond & np.isfinite(share) & np.isfinite(norm) & ~by_design)]


def _moved(step: Step, statistic: str, weights: Rows) -> tuple[Values, Values]:
    """How far a statistic of each weight has moved, and in how many steps; NaN where it is new."""
    now = weights.statistic(statistic)
    before, when = step.memory.get(f"unexplained_change {statistic}", Last()).swap(weights.targets, now, step.number)
    with np.errstate(invalid="ignore"):
        return np.abs(now - before), np.maximum(1.0, step.number - when)


def _largest_lately(step: Step, targets: Sequence[str], values: Values, wanted: Sequence[str]) -> Values:
    """The larger of this update and the one seen before it, for each weight; NaN where none was seen."""
    before, _ = step.memory.get("unexplained_change length", Last()).swap(tuple(targets), values, step.number)
    found = dict(zip(targets, np.fmax(values, before), strict=True))
    return np.array([found.get(target, np.nan) for target in wanted])
