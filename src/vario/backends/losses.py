"""What a probe is told of the losses that a training loop goes back from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

Gradients = Literal["added", "anew", "elsewhere"]


class BackwardLoss(NamedTuple):
    """The number that backward was called on, where it reached parameters that are watched."""

    value: Callable[[], float]
    """Waits for it, on any thread; without the loss scale."""
    divisor: float
    """The plain numbers by which the loop divided it last, multiplied; 1 where its graph shows none."""
    num_items: int
    """The elements that were added up before that division; 1 where it was no sum."""
    gradients: Gradients
    """Where its gradients go: on top of those of the backward before, in their place because somebody threw these
    away, or the same at weights that have been moved meanwhile without an update."""
    is_kept: bool
    """Whether it adds to the parameters' gradients; `torch.autograd.grad` hands them to the loop instead."""
