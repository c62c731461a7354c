"""Loss functions that get what they are not made for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from vario.core.quantities import LOSS_MISUSE
from vario.core.text import number
from vario.rules import Finding, Step, rule


class _Misuse(NamedTuple):
    text: str
    cause: str


FIRST = 16
"""Steps in which losses are looked at for the first time."""
MISUSES = {
    "softmax_twice": _Misuse(
        "the loss applies a log-softmax to the output of a softmax",
        "softmax is applied twice, by the model and again by the loss: the loss needs logits",
    ),
    "sigmoid_twice": _Misuse(
        "the loss applies a sigmoid to the output of a sigmoid",
        "sigmoid is applied twice, by the model and again by the loss: the loss needs logits",
    ),
    "raw_outputs": _Misuse(
        "the loss needs log-probabilities and gets the raw outputs of a layer",
        "a log-softmax is missing: the loss is given logits instead of log-probabilities",
    ),
    "probabilities": _Misuse(
        "the loss needs log-probabilities and gets the output of a softmax",
        "a logarithm is missing: the loss is given probabilities from a softmax instead of log-probabilities",
    ),
    "broadcast": _Misuse(
        "the loss compares each prediction with the targets of all: their shapes were broadcast",
        "predictions and targets have different shapes, such as (N, 1) and (N): broadcasting pairs each with all",
    ),
}


@rule("exact", needs=LOSS_MISUSE, stage="loss")
def loss_misuse(step: Step) -> Iterator[Finding]:
    """A loss function whose inputs do not fit it.

    Why: two softmaxes in a row, logits where log-probabilities belong, shapes that broadcast, targets that the output
    can't reach. Nothing raises an error, and the loss may even fall, but the model learns little, or the wrong thing.
    This is read from the functions and shapes in the graph of the loss; only torch's own loss functions are known.

    Cause: the inputs of the loss function do not fit it

    Points to (global): labels 4, module 3

    Next: Look at what the model returns and at what the loss function expects. Leave out a softmax or sigmoid that the
    loss applies itself, put `log_softmax` in front of `nll_loss` and `ctc_loss`, `squeeze` predictions of shape (N, 1),
    and scale targets to the range of the output.
    """
    for name, value in step.scalars.items():
        if not name.startswith(LOSS_MISUSE):
            continue
        kind = name.removeprefix(LOSS_MISUSE)
        found = MISUSES.get(kind) or _beyond(kind, value)
        yield Finding(
            found.text,
            "scalar",
            name,
            value,
            scope="global",
            strength=4.0,
            since=step.memory.first_step(step.number) if step.number < FIRST else None,
            severity="warn",
            cause=found.cause,
        )


def _beyond(kind: str, value: float) -> _Misuse:
    _, low, high = kind.split("_")
    return _Misuse(
        f"the loss compares outputs from {low} to {high} with targets such as {number(value)}",
        f"the range of the outputs, {low} to {high}, does not cover the targets: the function that the model ends with "
        "saturates, or the targets are not scaled",
    )
