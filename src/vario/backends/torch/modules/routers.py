"""Routers of a mixture of experts: which modules are, and how many tokens they send to each expert."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from vario.backends.torch.reduce.tensors import aside, local_part

_ROUTER_NAMES = frozenset({"gate", "router", "gating"})
_NUM_EXPERTS = (
    *("num_experts", "n_routed_experts", "num_local_experts", "n_experts", "moe_num_experts", "num_moe_experts"),
    *("num_routed_experts",),
)
_TOP_K = (
    *("top_k", "topk", "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_router_topk"),
    *("num_selected_experts", "n_activated_experts", "experts_per_token", "moe_k"),
)
_EXPERTS = re.compile("experts?$", re.IGNORECASE)


class Routers:
    """The routers among a model's modules."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules
        parents = ((child, module) for module in modules.values() for child in module.children())
        self._parents = {id(child): parent for child, parent in parents}

    def names(self, chosen: Mapping[str, nn.Module]) -> list[str]:
        """Those of the chosen modules that are routers, by their name or class and the experts beside them."""
        return [name for name, module in chosen.items() if self._is_router(name, module)]

    def _is_router(self, name: str, module: nn.Module) -> bool:
        is_called_so = name.rpartition(".")[2] in _ROUTER_NAMES or type(module).__name__.endswith("Router")
        if not is_called_so:
            return False
        parent = self._parents.get(id(module))
        beside = () if parent is None else parent.named_children()
        has_experts = any(child is not module and _is_of_experts(key, child) for key, child in beside)
        number = _number(module, _NUM_EXPERTS)
        return has_experts or (number is not None and number > 1)

    def load(self, name: str, returned: Sequence[Any]) -> torch.Tensor | None:
        """Per expert, how many tokens a router sent to it over the mean of all experts; None where it does not say."""
        tensors = [part for part in map(_part, returned) if part is not None]
        module = self._modules[name]
        num_experts = self._num_experts(module, tensors)
        if not tensors or num_experts is None or num_experts < 2:
            return None
        with aside(tensors[0].device):
            counts = _counts(tensors, num_experts, min(self._top_k(module), num_experts))
            if counts is None:
                return None
            return counts.float() * (num_experts / counts.sum().clamp(min=1))

    def _num_experts(self, module: nn.Module, tensors: Sequence[torch.Tensor]) -> int | None:
        """As many as the model says, or a few more where there are logits of experts that do nothing."""
        widths = [tensor.shape[-1] for tensor in tensors if tensor.ndim > 1 and tensor.is_floating_point()]
        said = self._look_up(module, _NUM_EXPERTS)
        if said is None or said in widths:
            return said or next(iter(widths), None)
        return min((width for width in widths if said < width <= 2 * said), default=said)

    def _top_k(self, module: nn.Module) -> int:
        return _number(module, ("k",)) or self._look_up(module, _TOP_K) or 1

    def _look_up(self, module: nn.Module, names: Sequence[str]) -> int | None:
        """What a router says of itself, else the layer it is in and the experts there, else the model's config."""
        # A model's config may have a `top_k` for generating text.
        of_configs = [name for name in names if "expert" in name or "moe" in name]
        here: nn.Module | None = module
        found = _number(module, names)
        while found is None and here is not None:
            found = _number(getattr(here, "config", None), of_configs)
            here = self._parents.get(id(here))
            if here is not None and found is None:
                beside = [child for key, child in here.named_children() if _is_of_experts(key, child)]
                numbers = (_number(place, names) for place in (here, *beside))
                found = next((number for number in numbers if number is not None), None)
        return found


def _is_of_experts(name: str, module: nn.Module) -> bool:
    return bool(_EXPERTS.search(name) or _EXPERTS.search(type(module).__name__))


def _number(place: Any, names: Sequence[str]) -> int | None:
    for name in names:
        value = getattr(place, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _part(value: Any) -> torch.Tensor | None:
    part = local_part(value) if isinstance(value, torch.Tensor) else None
    return part if part is not None and part.ndim and part.numel() else None


def _counts(tensors: Sequence[torch.Tensor], num_experts: int, top_k: int) -> torch.Tensor | None:
    """Tokens per expert, from the plainest thing a router returns: a map, choices, logits, and else a vector."""
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
            # Beside what dispatches tokens to places of experts it is their count, else the one choice of each token.
            is_count = len(tensor) == num_experts and any(other.ndim == 3 for other in tensors)
            return tensor if is_count else _number_of_each(tensor, num_experts)
    return None


def _over_tokens(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _number_of_each(choices: torch.Tensor, num_experts: int, are_known: bool = False) -> torch.Tensor:
    """How often each expert is chosen; `bincount` would wait for the device, and choices of no expert are dropped."""
    choices = choices.reshape(-1).long()
    if not are_known:
        choices = choices.clamp(-1, num_experts) + 1
    counts = torch.zeros(num_experts + (0 if are_known else 2), dtype=torch.int64, device=choices.device)
    counts.scatter_add_(0, choices, torch.ones_like(choices))
    return counts if are_known else counts[1:-1]
