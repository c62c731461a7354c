"""Report the start and end of every backward pass of the process.

`Tensor.backward`, `torch.autograd.backward` and `torch.autograd.grad` have no hooks, but all of them call one function
of `torch.autograd`, which is replaced while anyone follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from vario.backends.protocols.events import Undo
from vario.backends.torch import releases
from vario.backends.torch.loop import hooks
from vario.backends.torch.loop.patching import replace
from vario.core.process import last_guard

_FUNCTION = "_engine_run_backward"
_INPUTS = 3
"""Position of the argument with the tensors whose gradients are requested; gradients and two flags come before it."""

Began = Callable[[Sequence[Any], Sequence[Any], Sequence[Any], bool], None]
"""Called with what backward starts from, the gradients it starts with, what it is restricted to, and whether gradients
are added to leaves."""

Ended = Callable[[bool], None]
"""Called with whether it raised."""

_followers: list[tuple[Began, Ended]] = []


def follow(began: Began, ended: Ended) -> Undo:
    """Report every outermost backward pass; those that a checkpoint runs inside one are part of it."""
    namespace = vars(torch.autograd)
    if _FUNCTION not in namespace:
        return lambda: None  # a release without it: only losses that models return are found there
    put_back = replace(namespace, _FUNCTION, _told)
    follower = began, ended
    _followers.append(follower)

    def undo() -> None:
        _followers.remove(follower)
        put_back()

    return undo


def _told(original: Callable[..., Any]) -> Callable[..., Any]:
    def run_backward(outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if not _followers or len(args) <= _INPUTS or hooks.current_backward() != -1 or _is_traced(outputs):
            return original(outputs, *args, **kwargs)
        followers = tuple(_followers)
        for began, _ in followers:
            last_guard.safely(began, outputs, args[0], args[_INPUTS], bool(kwargs.get("accumulate_grad")))
        has_failed = True
        try:
            result = original(outputs, *args, **kwargs)
            has_failed = False
            return result
        finally:
            for _, ended in followers:
                last_guard.safely(ended, has_failed)

    return releases.run_eagerly(run_backward)


def _is_traced(outputs: Sequence[Any]) -> bool:
    """Whether this is no backward pass but a compiler that looks at one: its tensors have no values."""
    kind = type(outputs[0]) if outputs else torch.Tensor
    return kind is not torch.Tensor and kind.__module__.startswith("torch._subclasses.")
