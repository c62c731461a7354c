"""What the loss is computed by, which no data change: operations, their order and the plain numbers in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from vario.core.quantities import GRAPH_CHANGE, GRAPH_SINCE, GRAPH_UNSEEN, GRAPH_WAS
from vario.core.text import number
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Last

THAWED = "setting/trainable_parameters"
ALL = "*"
"""The place of what has changed in several parts of the model."""
AFTER_THAWING = 64
"""Steps after parameters were frozen or unfrozen in which another graph is due to that."""


class _Change(NamedTuple):
    kind: str
    operations: str
    argument: str
    place: str
    was: float
    now: float
    since: int
    unseen_from: int

    @property
    def is_local(self) -> bool:
        """Whether it is in one part of the model."""
        return self.place not in ("", ALL)


@rule("exact", is_symptom=True, needs=f"{GRAPH_CHANGE} {THAWED}", stage="forward")
def graph_change(step: Step) -> Iterator[Finding]:
    """A loss or a model that is computed by other operations than before, in another order, or with another number.

    Why: an option, a flag or a global changes which code runs. No weight and no setting shows that, but the graph that
    backward goes through does: a temperature, a weight of a term, a scale, a normalisation that is skipped, a term that
    lost its gradient. Only a change of what was always the same is reported. A schedule that changes such a number in
    steps, or a phase of training with another loss, is found as well, so this is a note.

    Cause: code of the model that computes this changed: an option, a flag or a branch

    Cause (batch): the code of the loss changed: one of its terms, their weights, or what is detached from it

    Points to: module 5

    Points to (global): module 5, loop 1

    Points to (batch): labels 3, loop 3, module 2

    Next: Look at what decides, in the code of this part, which operations run and with which numbers. If the change was
    planned, nothing is wrong.
    """
    found = [_read(step, name) for name in step.scalars if name.startswith(GRAPH_CHANGE)]
    if not found and THAWED not in step.scalars:
        return
    memory = step.memory.get("graph_change thawed", Last)
    if THAWED in step.scalars and step.number > step.memory.first_step(step.number) + 1:
        memory.swap_one("step", float(step.number), step.number)
    if not found or step.number - memory.one("value", "step") < AFTER_THAWING:
        return
    if all(change.kind == "constant" for change in found) and memory.swap_one("constant", 1.0, step.number) == 1:
        return  # a number that changes again is moved by a schedule
    first = max(found, key=lambda change: (change.kind == "constant", change.is_local, change.kind != "order"))
    yield Finding(
        _text(first),
        "activation" if first.is_local else "scalar",
        first.place if first.is_local else next(name for name in step.scalars if name.startswith(GRAPH_CHANGE)),
        first.now,
        low=first.was if first.kind == "constant" else None,
        high=first.was if first.kind == "constant" else None,
        scope="tensor" if first.is_local else "global" if first.place else "batch",
        others=tuple(dict.fromkeys(each.place for each in found if each.is_local and each.place != first.place)),
        strength=6.0,
        since=first.since,
        unseen_from=first.unseen_from,
        severity="note",
        cause=_cause(first),
    )


def _read(step: Step, name: str) -> _Change:
    key = name.removeprefix(GRAPH_CHANGE)
    what, _, place = key.partition("@")
    kind, operations, argument = [*what.split(" "), "", ""][:3]
    since, unseen_from = (int(step.scalars.get(when + key, step.number)) for when in (GRAPH_SINCE, GRAPH_UNSEEN))
    was = step.scalars.get(GRAPH_WAS + key, float("nan"))
    return _Change(kind, operations, argument, place.partition(" (")[0], was, step.scalars[name], since, unseen_from)


def _where(change: _Change) -> str:
    if change.place == ALL:
        return "in several parts of the model"
    return f"in '{change.place}'" if change.place else "behind the model's last parameter, where the loss is computed"


def _text(change: _Change) -> str:
    where, names = _where(change), change.operations.replace("+", ", ")
    if change.kind == "constant":
        if change.argument == "inputs_with_gradient":
            inputs = f"{number(change.now)} of its inputs, always {number(change.was)} before"
            return f"{names} {where} passes gradients to {inputs}"
        verb = {("Div", "factor"): "divides by", ("Mul", "factor"): "multiplies by"}.get(
            (names, change.argument), f"has {change.argument.replace('_', ' ')}"
        )
        return f"{names} {where} {verb} {number(change.now)}, always {number(change.was)} before"
    if change.kind == "order":
        return f"operations {where} run in another order than in all steps before"
    more = "more" if change.kind == "new" else "fewer"
    return f"what the loss is computed by has {more} operations {where} than in all steps before: {names}"


MEANINGS = {
    "factor": "a scale, a temperature, the weight of a term or a divisor",
    "inputs_with_gradient": "what goes into it is detached, frozen or a constant now, or no longer is",
    "alpha": "the weight of a term in a sum",
    "min": "a limit: what is clipped or clamped",
    "max": "a limit: what is clipped or clamped",
    "dim": "the dimension over which it works",
    "reduction": "how it averages (`reduction`)",
    "training": "training or evaluation mode",
    "ignore_index": "which labels are ignored",
    "blank": "which class stands for nothing (`blank`)",
    "eps": "what a normalisation adds to the variance",
    "momentum": "how fast running statistics follow",
    "exponent": "the power to which it raises",
    "scale": "a scale, such as that of attention scores",
    "is_causal": "which positions attention sees: the mask",
    "p": "a probability, such as that of dropout",
}
"""What arguments of operations usually decide."""


def _cause(change: _Change) -> str:
    where = f"of '{change.place}'" if change.is_local else "of the model" if change.place else "of the loss"
    if change.kind == "constant":
        return f"a number in the code {where} changed: {MEANINGS.get(change.argument, 'an option of this operation')}"
    if change.kind == "gone":
        return (
            f"a part of the computation {where} is left out now: a term, a normalisation, a branch, a residual; or it "
            "is detached and gets no gradient any more (`detach`, `no_grad`, `create_graph`)"
        )
    if change.kind == "new":
        return f"another branch of the code {where} runs: a term, a function or a normalisation that is new"
    return f"the code {where} does the same operations in another order: dimensions, heads or terms may be mixed up"
