"""Weights that something other than the optimizer changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from vario.core.records import COUNT, ZEROS
from vario.core.text import number
from vario.rules import Finding, Rows, Step, rule
from vario.rules.api.alerts import Severity
from vario.rules.api.series_state import Flags, Last, Streak, Values

CHANGE = "unexpected_change"
SLACK = 2.0
TOLERANCE = 2e-3
UNSEEN = 0.1
"""What unwatched updates may have added: in bf16 most round to zero and one is a large step."""
MOST_UNSEEN = 20
"""The most steps between two looks at a weight whose updates can be estimated from those that were watched."""
ENOUGH = 16
"""The fewest elements of a weight from whose watched updates the others can be estimated."""
FEW = 4
FEW_ELEMENTS, FEW_SHARE, MOST_SHARE = 4, 0.01, 0.25
"""How many elements of a weight, or which share of them, may be broken memory, and no more than which share of those
that were looked at: one of three that changed may be one of many."""
UPDATES = 10
"""A change no larger than this many updates is something loops do themselves: clamping, averaging, reverting."""
ROUNDING = {"float64": 1e-14, "bfloat16": 0.03, "float16": 4e-3}
"""Relative to the largest element of a weight: the rounding error of adding a value and subtracting it again."""


@rule("exact", needs=f"{CHANGE} weight update")
def unexplained_change(step: Step, clean_steps: int = 8) -> Iterator[Finding]:
    """A weight that changed outside the optimizer's updates, or by more than they explain.

    Why: only the optimizer should change it. Otherwise memory was corrupted, a checkpoint was partly loaded, or other
    code writes weights. What the loop does after every update, such as clipping weights, is learned from its first
    steps and ignored, and so is rounding. A few elements that changed are a page: code rarely writes single elements.
    If all weights change together, or by no more than a few updates would, the loop wrote them: that is only a note. So
    is a weight that moved further than the watched updates can explain.

    Cause: something other than the optimizer wrote this weight: corrupted memory, a partial load, other code

    Cause (global): the weights were changed outside the optimizer: a checkpoint was loaded, or other code writes them

    Points to: hardware 2, loop 2, resume 1

    Points to (global): loop 3, resume 2

    Next: Check whether the code between the two updates loads a checkpoint or writes weights. If only one rank is
    named, check that rank's device.
    """
    moved = _moved_between_updates(step, clean_steps)
    if not len(moved) and "update" not in step.quantities:
        return  # nothing changed, and there are no updates to compare with
    reach = _reach(step)
    rows = _of_weights(step)
    sizes = rows.statistic("absmax")
    order = moved[np.argsort(-sizes[moved])]
    changes = {
        rows.targets[index]: f"'{rows.targets[index]}' changed by up to {number(sizes[index])} between two updates "
        f"({int(rows.summaries[index, COUNT] - rows.summaries[index, ZEROS])} of {int(rows.summaries[index, COUNT])} "
        "sampled elements)"
        for index in order
    }
    # Without a watched update there is no size to compare with, so any change counts.
    is_far = {rows.targets[index]: not sizes[index] <= UPDATES * reach.get(rows.targets[index], 0.0) for index in order}
    beyond = _beyond_updates(step, reach)
    if not changes:
        changes = {name: f"'{name}' moved further than its updates since it was last recorded" for name in beyond}
    if _are_most(step, list(changes)):
        text = f"{len(changes)} weights changed outside the optimizer: {next(iter(changes.values()))}"
        others = tuple(list(changes)[:16])
        yield Finding(text, CHANGE, None, scope="global", strength=1e3, others=others, severity="note")
        return
    is_small = {rows.targets[index]: _are_few(rows, int(index)) for index in order}
    for place, (name, text) in enumerate(changes.items()):
        if place < 16:
            # Memory that breaks changes an element or a few. Code writes rows and tensors, on purpose or not.
            severity: Severity = ("page" if is_small[name] else "warn") if is_far.get(name) else "note"
            yield Finding(text, CHANGE, name, statistic="absmax", order=place, strength=100 - place, severity=severity)


def _are_few(rows: Rows, index: int) -> bool:
    """Whether only a few of the sampled elements changed."""
    count, zeros = rows.summaries[index, COUNT], rows.summaries[index, ZEROS]
    # Of a weight that is written as a whole, a glance sees all of its elements change.
    return bool(zeros > 0 and count - zeros <= max(min(FEW_ELEMENTS, MOST_SHARE * count), FEW_SHARE * count))


def _of_weights(step: Step) -> Rows:
    """What changed of weights; rows of an optimizer's state are named `NAME:KEY`."""
    rows = step.rows(CHANGE)
    if not any(":" in name for name in rows.targets):
        return rows
    at = np.array([index for index, name in enumerate(rows.targets) if ":" not in name], np.int64)
    return Rows(CHANGE, tuple(rows.targets[index] for index in at), rows.order[at], rows.summaries[at])


def _are_most(step: Step, names: Sequence[str]) -> bool:
    """Whether these are most of the weights, which points to one common cause."""
    everything = step.facts.trainable or step.rows("weight").targets
    matrices = [name for name in everything if len(step.facts.shapes.get(name, (1, 1))) > 1]
    most = max(1, min(len(everything), len(matrices)) / 2)
    return (len(names) >= FEW - 1 and len(names) > most) or len(names) == len(everything) > 1


def _reach(step: Step) -> dict[str, float]:
    """The largest change of an element in the latest watched updates, for each weight."""
    change = step.rows("update", "change")
    kept = step.memory.get("unexplained_change reach", Last)
    if len(change):
        sizes = change.statistic("absmax")
        before, _ = kept.swap(change.targets, sizes, step.number)
        return dict(zip(change.targets, np.fmax(sizes, before).tolist(), strict=True))
    return dict(zip(kept.names, kept.read("value", kept.names).tolist(), strict=True))


def _moved_between_updates(step: Step, clean_steps: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Weights that changed between updates, unless the loop has done that from the start."""
    if step.quantities.isdisjoint((CHANGE, "weight")):
        return np.zeros(0, np.int64)
    rows = _of_weights(step)
    weights = step.rows("weight")
    largest = step.memory.get("unexplained_change largest", Last)
    known = largest.read("value", rows.targets)
    if len(weights):
        largest.swap(weights.targets, weights.statistic("absmax"), step.number)
    if not len(rows):
        return np.zeros(0, np.int64)
    # There are rows only if something changed, so the first one decides: an early change is by design.
    habit = step.memory.get("unexplained_change habit", Streak)
    is_early = step.number - step.memory.first_step(step.number) < clean_steps
    by_design = habit.update(rows.targets, np.full(len(rows), is_early) | (habit.read("count", rows.targets) > 0))
    rounding = np.array([ROUNDING.get(step.facts.dtypes.get(name, ""), 1e-6) for name in rows.targets])
    is_rounding = rows.statistic("absmax") <= rounding * np.nan_to_num(known)
    return np.flatnonzero((by_design == 0) & ~is_rounding)


def _beyond_updates(step: Step, reach: Mapping[str, float]) -> list[str]:
    """Weights whose norm, mean or extremes moved further than the updates since they were last recorded explain.

    Large weights have only a sample of their updates, and most updates were not watched: a hint, not a proof.
    """
    weights, change = step.rows("weight"), step.rows("update", "change")
    if not len(weights) or not len(change) or step.was_skipped:
        return []
    names = weights.targets
    count = weights.summaries[:, COUNT]
    # The norm of the whole update, estimated from its sample.
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
        # Extremes cover all elements, updates only a sample: the largest update may be missing.
        slack = np.where(steps > 1, 5 * UNSEEN, TOLERANCE) * np.abs(weights.statistic("absmax"))
        beyond |= moved > 10 * SLACK * steps * widest + slack + 1e-6
    # A few elements may move against each other, and two updates that were watched say little about many others.
    beyond &= (count >= ENOUGH) & (steps <= MOST_UNSEEN)
    by_design = step.memory.get("unexplained_change habit", Streak).read("count", names) > 0
    return [names[index] for index in np.flatnonzero(beyond & np.isfinite(share) & np.isfinite(norm) & ~by_design)]


def _moved(step: Step, statistic: str, weights: Rows) -> tuple[Values, Values]:
    """How far a statistic of each weight moved, and in how many steps; NaN if it is new."""
    now = weights.statistic(statistic)
    before, when = step.memory.get(f"unexplained_change {statistic}", Last).swap(weights.targets, now, step.number)
    with np.errstate(invalid="ignore"):
        return np.abs(now - before), np.maximum(1.0, step.number - when)


def _largest_lately(step: Step, targets: Sequence[str], values: Values, wanted: Sequence[str]) -> Values:
    """The larger of this update and the previous recorded one, for each weight; NaN if there is none."""
    before, _ = step.memory.get("unexplained_change length", Last).swap(tuple(targets), values, step.number)
    found = dict(zip(targets, np.fmax(values, before), strict=True))
    return np.array([found.get(target, np.nan) for target in wanted])
