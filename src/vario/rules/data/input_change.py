"""Inputs of the model that change, as the training process sees them at every step."""

from __future__ import annotations

from collections.abc import Iterator

from vario.core.quantities import INPUT_CHANGE, INPUT_SINCE, INPUT_WAS, OFTEN
from vario.core.text import number
from vario.rules import Finding, Step, rule

ORDER = "same", "common", "spread", "mean", "common_often", "spread_often", "mean_often"
"""What says most about an input comes first."""


@rule("relative", needs=INPUT_CHANGE, stage="batch")
def input_change(step: Step) -> Iterator[Finding]:
    """An input of the model whose scale changes, or that becomes mostly one number or the same at every step.

    Why: normalisation was left out, more of the batch is padding, images are blank, the loader or the random numbers
    are stuck. At every step, a few elements of each input are checked; a change counts if it lasts and lies far outside
    everything before. Planned changes, such as longer sequences, are found as well, so this is a note.

    Cause: the data that go into the model changed: their scale, their padding, or what fills them

    Points to: data 5, labels 4

    Next: Look at a batch of this step, and at the code that prepares the input named: normalisation, padding, sampling.
    """
    yield from _told(step, is_target=False)


@rule("relative", needs=INPUT_CHANGE, stage="loss")
def target_change(step: Step) -> Iterator[Finding]:
    """Labels or targets of the loss whose scale changes, or that become mostly one number or the same at every step.

    Why: a scale was left out, padding now counts or no longer does, classes are missing, rewards have changed. At every
    step, a few elements of the targets of torch's loss functions are checked; a change counts if it lasts and lies far
    outside everything before.

    Cause: the targets of the loss (labels, rewards) changed: their scale or their padding

    Points to: labels 5, data 2

    Next: Look at the labels of this step, and at the code that prepares them: classes, ignored ones, scale, order.
    """
    yield from _told(step, is_target=True)


def _told(step: Step, *, is_target: bool) -> Iterator[Finding]:
    found = {
        name.removeprefix(INPUT_CHANGE): now
        for name, now in step.scalars.items()
        if name.startswith(INPUT_CHANGE) and name.startswith(f"{INPUT_CHANGE}target") is is_target
    }
    if not found:
        return
    names = sorted(found, key=lambda name: ORDER.index(name.rpartition(":")[2]))
    name, _, what = names[0].rpartition(":")
    now, was = found[names[0]], step.scalars.get(f"{INPUT_WAS}{names[0]}", 0.0)
    yield Finding(
        _text(name, what, was, now),
        "scalar",
        f"{INPUT_CHANGE}{names[0]}",
        now,
        low=min(was, now),
        high=max(was, now),
        others=tuple(dict.fromkeys(f"{INPUT_CHANGE}{other}" for other in names[1:])),
        scope="batch",
        strength=8.0,
        since=int(step.scalars.get(f"{INPUT_SINCE}{names[0]}", step.number)),
        severity="warn" if what == "same" else "note",
        cause=_cause(what, is_target),
    )


def _cause(what: str, is_target: bool) -> str:
    """What changes inputs or targets in this way."""
    kind, is_sometimes = what.removesuffix(OFTEN), what.endswith(OFTEN)
    if is_target:
        opening = "the targets of the loss (labels, rewards) changed: they"
        endings = {
            "same": "are those of the same batch in each step: a stuck data loader, or the same random numbers again",
            "common": "are mostly one number: padding that counts or is ignored, or classes that are missing",
        }
        ending = endings.get(kind, "have another scale, sign or meaning")
    else:
        opening = "the data that go into the model changed: they"
        endings = {
            "same": "repeat in each step: a stuck data loader, or the same random numbers again",
            "common": "are mostly one number: padding, blank rows, or a feature that is no longer filled in",
        }
        ending = endings.get(kind, "have another scale or offset: a normalisation that was left out or applied twice")
    return f"{opening} {ending}" + (", in one of several sources such as a shard or a worker" if is_sometimes else "")


def _text(name: str, what: str, was: float, now: float) -> str:
    if what.endswith(OFTEN):
        return f"in some of the batches, as never before, {_text(name, what.removesuffix(OFTEN), was, now)}"
    of = "the loss" if name.startswith("target") else "the model"
    if what == "same":
        return f"'{name}' of {of} has been the same for several steps in a row, and always changed before"
    if what == "common":
        now, was = 100 * now, 100 * was
        return f"{number(now, 3)} % of the elements of '{name}' of {of} are the same number, usually {number(was, 3)} %"
    if what == "spread" and now == 0:
        return f"all elements of '{name}' of {of} are the same number, usually they spread by {number(was)}"
    noun = "mean" if what == "mean" else "standard deviation"
    return f"the {noun} of '{name}' of {of} has become {number(now)}, usually {number(was)}"
