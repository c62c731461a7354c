"""Routers of a mixture of experts: which modules are routers, and how many tokens they send to each expert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from vario.backends.routers import RouterNames
from vario.backends.torch.reduce.tensors import aside, local_part


class Routers(RouterNames):
    """The routers among a model's modules."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        super().__init__(modules, lambda module: module.named_children())
        self._modules = modules

    def load(self, name: str, returned: Sequence[Any]) -> torch.Tensor | None:
        """Return the tokens a router sent to each expert over the mean of all experts; None if it does not say."""
        tensors = [part for part in map(_part, returned) if part is not None]
        module = self._modules[name]
        widths = [tensor.shape[-1] for tensor in tensors if tensor.ndim > 1 and tensor.is_floating_point()]
        num_experts = self.num_experts(module, widths)
        if not tensors or num_experts is None or num_experts < 2:
            return None
        with aside(tensors[0].device):
            counts = _counts(tensors, num_experts, min(self.top_k(module), num_experts))
            if counts is None:
                return None
            return counts.float() * (num_experts / counts.sum().clamp(min=1))


def _part(value: Any) -> torch.Tensor | None:
    part = local_part(value) if isinstance(value, torch.Tensor) else None
    return part if part is not None and part.ndim and part.numel() else None


def _counts(tensors: Sequence[torch.Tensor], num_experts: int, top_k: int) -> torch.Tensor | None:
    """Return tokens per expert, from the simplest thing a router returns: a map, choices, logits, or else a vector."""
    whole = [tensor for tensor in tensors if not tensor.is_floating_point()]
    maps = [_over_tokens(tensor) for tensor in tensors if tensor.ndim > 1 and tensor.shape[-1] == num_experts]
    for tensor in maps:
        if tensor.dtype is torch.bool:
            return tensor.sum(0)
    for tensor in whole:
        if tensor.ndim > 1 and tensor.dtype is not torch.bool:
            is_map = tensor.shape[-1] == num_experts != top_k
            return (_over_tokens(tensor) != 0).sum(0) if is_map else _number_of_each(tensor, num_experts)
    for tensor in maps:
        if tensor.is_floating_point():
            return _number_of_each(tensor.topk(top_k).indices, num_experts, are_known=True)
    for tensor in whole:
        if tensor.ndim == 1 and tensor.dtype is not torch.bool:
            # Beside a tensor that dispatches tokens it is their count, otherwise the one choice of each token.
            is_count = len(tensor) == num_experts and any(other.ndim == 3 for other in tensors)
            return tensor if is_count else _number_of_each(tensor, num_experts)
    return None


def _over_tokens(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _number_of_each(choices: torch.Tensor, num_experts: int, are_known: bool = False) -> torch.Tensor:
    """Return how often each expert is chosen; `bincount` would wait for the device. Invalid choices are dropped."""
    choices = choices.reshape(-1).long()
    if not are_known:
        choices = choices.clamp(-1, num_experts) + 1
    counts = torch.zeros(num_experts + (0 if are_known else 2), dtype=torch.int64, device=choices.device)
    counts.scatter_add_(0, choices, torch.ones_like(choices))
    return counts if are_known else counts[1:-1]
