"""The losses of a training loop, as a probe gets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from vario.backends.protocols.observing import Later

Gradients = Literal["added", "anew", "elsewhere"]


class LossTarget(NamedTuple):
    """What a loss compares with: some elements of labels or targets, the same places each time."""

    name: str
    sample: Later
    kind: str
    """What a mean over this target alone is, if the loss is one: of "classes", "squares" or "numbers"; else empty."""
    num_classes: int
    """How many classes it chooses from; 0 for a target of numbers."""
    limits: tuple[float, float] | None = None
    """What the predictions are limited to by the function that the model ends with, if it is known."""


class Compared(NamedTuple):
    """What the graph of a loss tells about what is compared."""

    targets: tuple[LossTarget, ...] = ()
    misuses: tuple[str, ...] = ()
    """How its loss functions are misused."""


class BackwardLoss(NamedTuple):
    """The number that backward was called on, if it reached watched parameters."""

    value: Callable[[], float]
    """Waits for the value, on any thread; without the loss scale."""
    divisor: float
    """Product of the plain numbers the loop divided it by last; 1 if its graph shows none."""
    num_items: int
    """The elements that were summed before that division; 1 if it was no sum."""
    gradients: Gradients
    """How its gradients relate to those of the previous backward pass: added to them, replacing them because they were
    discarded, or the same at weights that were moved meanwhile without an update."""
    is_kept: bool
    """Whether it adds to the parameters' gradients; `torch.autograd.grad` returns them to the loop instead."""
