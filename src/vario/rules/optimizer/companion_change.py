"""Models that run beside the one that is trained: teachers, target networks, averages, references."""

from __future__ import annotations

from collections.abc import Iterator

from vario.core.quantities import COMPANION_CHANGE, COMPANION_SINCE
from vario.core.text import number
from vario.rules import Finding, Step, rule


@rule("exact", needs=COMPANION_CHANGE, stage="forward")
def companion_change(step: Step) -> Iterator[Finding]:
    """A teacher, target network, average or reference model that is not what it was, or works as in training.

    Why: what such a model says is what the trained one learns from. If it is in training mode, dropout and the
    statistics of the batch change its answers. If it no longer follows, or was made anew, its answers are stale or
    mean nothing. The loss alone rarely shows which of the two models is wrong.

    Cause: a model beside the trained one changed

    Points to: loop 5, resume 2, module 1

    Next: Look at where this model is made, updated and switched between `train()` and `eval()`.
    """
    for name, value in step.scalars.items():
        if not name.startswith(COMPANION_CHANGE):
            continue
        key = name.removeprefix(COMPANION_CHANGE)
        what, _, model = key.partition(":")
        since = int(step.scalars.get(COMPANION_SINCE + key, step.number))
        text, cause = _words(what, model, value, since)
        yield Finding(
            text,
            "scalar",
            name,
            value,
            scope="global",
            strength=6.0,
            since=since,
            severity="note",
            cause=cause,
        )


def _words(what: str, model: str, value: float, since: int) -> tuple[str, str]:
    opening = f"the model {model}, which runs beside the one that is trained,"
    if what == "training":
        return (
            f"{opening} switched to training mode: {number(value)} of its modules are dropout or batch norm",
            "a teacher, target or reference model is in training mode: `eval()` was undone, and dropout or the "
            "statistics of the batch change what it says",
        )
    if what == "training_at_start":
        return (
            f"{opening} never changes and is in training mode, as {number(value)} dropout or batch norm modules are",
            "a teacher or reference model was never put in evaluation mode (`eval()`): dropout or the statistics of "
            "the batch change what it says",
        )
    if what == "still":
        return (
            f"{opening} has not changed since step {since}, and did so regularly before",
            "a target network or a moving average (EMA) is no longer updated: it is stale",
        )
    if what == "apart":
        return (
            f"{opening} is far from the trained model's weights now: {number(100 * value, 3)} % of their size",
            "a target network or a moving average (EMA) was made anew or lost, or its update is wrong: it is no copy "
            "of the model any more",
        )
    return (
        f"{opening} changed its weights, and never did before",
        "a teacher or reference model was overwritten, made anew, or is trained by mistake",
    )
