"""Optimizers inside optimizers, their parameters, and how `step` was called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from vario.core.errors import ModelError

if TYPE_CHECKING:
    from vario.backends.torch.engines.base import Piece

_COUNTERS = frozenset({"step"})
"""State that counts updates, not a moment."""


def innermost(optimizer: Any) -> torch.optim.Optimizer:
    """Return the torch optimizer inside wrappers such as accelerate's, whose own hooks never fire."""
    inner = optimizer
    while not _has_own_hooks(inner):
        # Megatron's chain of several has no `optimizer`: all members are alike, so take the first.
        chained = getattr(inner, "chained_optimizers", None)
        if chained == [] or (chained is None and not hasattr(inner, "optimizer")):
            break
        inner = inner.optimizer if chained is None else chained[0]
    if not isinstance(inner, torch.optim.Optimizer):
        raise ModelError(
            f"watch: expected a torch.optim.Optimizer, got {type(optimizer).__name__}. Omit the optimizer and "
            "call monitor.step() after each update instead."
        )
    return inner


def taken_away(optimizer: torch.optim.Optimizer) -> ModelError:
    """Return the error for an optimizer that had the model's parameters when it was given, and has others now."""
    return ModelError(
        f"{type(optimizer).__name__} no longer has any of the model's parameters, so its updates do not count as "
        "steps. Call vario.watch after deepspeed.initialize, accelerator.prepare or fully_shard."
    )


def _has_own_hooks(optimizer: Any) -> bool:
    return isinstance(optimizer, torch.optim.Optimizer) and hasattr(optimizer, "_optimizer_step_pre_hooks")


def has_closure(args: Any, kwargs: Any) -> bool:
    """Whether `step` was called with a closure that runs forward and backward inside it."""
    candidates = [*args, *kwargs.values()]
    return any(callable(item) and not isinstance(item, torch.optim.Optimizer) for item in candidates)


def is_scaled_by_itself(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a GradScaler leaves unscaling and skipping to this optimizer, as it does to fused ones."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def state_tensors(optimizer: torch.optim.Optimizer, piece: Piece) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor of one parameter's state by name, without counters."""
    return named_state_tensors(state_of(optimizer, piece))


def named_state_tensors(state: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every tensor of one parameter's state by name, without counters."""
    for key, value in state.items():
        if key in _COUNTERS:
            continue
        if isinstance(value, torch.Tensor):
            yield str(key), value
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                if isinstance(item, torch.Tensor):
                    yield f"{key}.{index}", item


def state_of(optimizer: torch.optim.Optimizer, piece: Piece) -> dict[str, Any]:
    """Return one parameter's state; in a flat tensor with several parameters, this one's elements."""
    # `state` is a defaultdict: looking up an unknown parameter would add an entry.
    state = optimizer.state.get(piece.held, {})
    if piece.part is None:
        return dict(state)
    size = piece.held.numel()
    return {
        key: piece.cut(value) if isinstance(value, torch.Tensor) and value.numel() == size else value
        for key, value in state.items()
        # State of the flat tensor as a whole (a factored moment) belongs to no parameter.
        if key in _COUNTERS or not isinstance(value, torch.Tensor) or value.numel() in (1, size)
    }
