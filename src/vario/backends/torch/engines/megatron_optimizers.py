"""Megatron's optimizers, and which tensors they use for which parameters of the model.

Everything read from them is here: groups of model parameters beside groups of what the inner torch optimizer updates.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from vario.backends.torch import naming
from vario.core.errors import ModelError


@dataclass(frozen=True)
class Member:
    """One of the optimizers that Megatron chains: a torch optimizer, and what it updates on this rank."""

    optimizer: torch.optim.Optimizer
    parameters: tuple[torch.nn.Parameter, ...]
    """The model's parameters that it updates, on any rank."""
    held: tuple[tuple[torch.nn.Parameter, torch.Tensor], ...]
    """Those it updates on this rank, each with the tensor in `param_groups` that represents it."""
    scaler: Any
    """What scales the loss, if anything does."""


def is_megatrons(optimizer: object) -> bool:
    """Whether an optimizer is Megatron's own around a torch optimizer."""
    return naming.comes_from_megatron(optimizer) and not isinstance(optimizer, torch.optim.Optimizer)


def live_optimizers() -> list[Any]:
    """Return all live Megatron optimizers that no other one chains: those whose `step` a training loop calls."""
    live = gc.get_objects()
    kinds = {kind for kind in set(map(type, live)) if _is_an_optimizer(kind)}
    found = [item for item in live if type(item) in kinds]
    chained = {id(member) for item in found for member in vars(item).get("chained_optimizers") or ()}
    return [item for item in found if id(item) not in chained]


def outermost(optimizer: Any) -> Any:
    """Return the optimizer whose `step` a training loop calls, given a member of its chain."""
    if "chained_optimizers" in vars(optimizer):
        return optimizer
    chains = (live for live in live_optimizers() if optimizer in (vars(live).get("chained_optimizers") or ()))
    return next(chains, optimizer)


def _is_an_optimizer(kind: type) -> bool:
    return any(base.__name__ == "MegatronOptimizer" for base in kind.__mro__)


def members(optimizer: Any) -> Iterator[Member]:
    """Yield the members of a Megatron optimizer; a rank with nothing to train has none."""
    # Not `.optimizer` of a chain: with several members that is an AssertionError.
    chained = vars(optimizer).get("chained_optimizers")
    if chained is not None:
        for member in chained:
            yield from members(member)
        return
    inner = getattr(optimizer, "optimizer", None)
    if inner is None:
        return
    if not isinstance(inner, torch.optim.Optimizer):
        raise ModelError(f"watch: expected a torch.optim.Optimizer inside Megatron's, got {type(inner).__name__}")
    held = tuple(_held(optimizer, inner))
    parameters = [parameter for parameter, _ in held]
    if type(optimizer).__name__ == "DistributedOptimizer":
        # A rank may own no element of a parameter, or of everything that an optimizer updates.
        parameters += [parameter for buffer in _kept(optimizer, "buffers") for parameter in buffer.params]
    yield Member(inner, tuple(dict.fromkeys(parameters)), held, getattr(optimizer, "grad_scaler", None))


def _held(optimizer: Any, inner: torch.optim.Optimizer) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
    kind = type(optimizer).__name__
    if kind == "DistributedOptimizer":
        # For 16-bit parameters a piece of a master copy; for others a piece of themselves.
        names = ("model_float16_groups", "shard_fp32_from_float16_groups"), ("model_fp32_groups", "shard_fp32_groups")
    elif kind == "Float16OptimizerWithFloat16Params":
        names = ("float16_groups", "fp32_from_float16_groups"), ("fp32_from_fp32_groups", "fp32_from_fp32_groups")
    else:
        yield from ((held, held) for group in inner.param_groups for held in group["params"])
        return
    for of_model, of_optimizer in names:
        for ours, theirs in zip(_kept(optimizer, of_model), _kept(optimizer, of_optimizer), strict=True):
            # A precision-aware optimizer has no master copies here; they are internal to it.
            yield from (pair for pair in zip(ours, theirs, strict=True) if pair[1] is not None)


def _kept(optimizer: Any, name: str) -> Iterable[Any]:
    found = getattr(optimizer, name, None)
    if found is None:
        raise ModelError(
            f"watch: this release of Megatron-core has a different layout of its {type(optimizer).__name__}: "
            f"there is no '{name}'. Tested with releases around 0.16."
        )
    kept: Iterable[Any] = found
    return kept
