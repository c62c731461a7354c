"""Routers of a mixture of experts: which modules are routers, what they decide, and how sure they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from vario.backends.routers import RouterNames, Routing
from vario.backends.torch.reduce.tensors import aside, local_part

MAX_TOKENS = 1024
"""Tokens whose logits are looked at, evenly spread."""


class LogitSource(NamedTuple):
    """Where a router's logits come from: what a module returns, or else what it is called with, times its weight."""

    module: str
    is_returned: bool


class _Counted(NamedTuple):
    counts: torch.Tensor
    """Tokens per expert."""
    asked: torch.Tensor | int | None
    """How many choices tokens asked for; None if the output does not say."""
    kept: torch.Tensor | None = None
    """How many of them were not dropped, if that is not the sum of the counts."""


class Routers(RouterNames):
    """The routers among a model's modules."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        super().__init__(modules, lambda module: module.named_children())
        self._modules = modules
        self._sources: dict[str, LogitSource | None] = {}

    def rows(self, name: str, returned: Sequence[Any]) -> dict[str, torch.Tensor] | None:
        """Return `load`, tokens per expert over their mean, and `dropped`, the share of choices, if the output says."""
        tensors = [part for part in map(_part, returned) if part is not None]
        module = self._modules[name]
        widths = [tensor.shape[-1] for tensor in tensors if tensor.ndim > 1 and tensor.is_floating_point()]
        num_experts = self.num_experts(module, widths)
        if not tensors or num_experts is None or num_experts < 2:
            return None
        with aside(tensors[0].device):
            counted = _counted(tensors, num_experts, self.said_top_k(module))
            return None if counted is None else _as_rows(counted)

    def rows_of(self, name: str, routing: Routing) -> dict[str, torch.Tensor] | None:
        """Return the same from what a function of the user's read from the output."""
        choices, logits = (_part(routing.get(key)) for key in ("choices", "logits"))
        given = [part for part in (choices, logits) if part is not None]
        module = self._modules[name]
        widths = [] if logits is None else [logits.shape[-1]]
        num_experts = routing.get("num_experts") or (widths[0] if widths else self.num_experts(module, widths))
        if not given or num_experts is None:
            raise ValueError(f"'{name}': tensors in 'choices' or 'logits', and 'num_experts' with choices alone")
        with aside(given[0].device):
            counted = _counted(given[:1], num_experts, routing.get("top_k") or self.said_top_k(module))
            return None if counted is None else _as_rows(counted)

    def logit_source(self, name: str) -> LogitSource | None:
        """Return how to get the logits of a router; None if its modules do not show it."""
        if name not in self._sources:
            self._sources[name] = self._find_source(name)
        return self._sources[name]

    def _find_source(self, name: str) -> LogitSource | None:
        module = self._modules[name]
        if _is_linear(module):
            return LogitSource(name, is_returned=True)
        num_experts = self.num_experts(module, ())
        inside = [
            key
            for key, part in self._modules.items()
            if key.startswith(f"{name}.") and _is_linear(part) and part.out_features == num_experts
        ]
        if len(inside) == 1:
            return LogitSource(inside[0], is_returned=True)
        weight = getattr(module, "weight", None)
        return LogitSource(name, is_returned=False) if isinstance(weight, nn.Parameter) else None

    def logit_rows(self, name: str, values: Sequence[Any]) -> dict[str, torch.Tensor] | None:
        """Return `entropy` and `logit` from what the source's module returned or was called with."""
        source = self.logit_source(name)
        tensor = _part(values[0]) if values else None
        if source is None or tensor is None or tensor.ndim < 2 or not tensor.is_floating_point():
            return None
        with aside(tensor.device):
            sample = _sample(tensor)
            if source.is_returned:
                return softmax_rows(sample)
            module = self._modules[source.module]
            weight, bias = (_part(getattr(module, key, None)) for key in ("weight", "bias"))
            if weight is None or weight.ndim != 2 or weight.shape[1] != sample.shape[1]:
                return None
            logits = nn.functional.linear(sample, weight.float(), None if bias is None else bias.float())
            return softmax_rows(logits)


def given_logit_rows(routing: Routing) -> dict[str, torch.Tensor] | None:
    """Return `entropy` and `logit` of logits that a function of the user's returned, if it did."""
    logits = _part(routing.get("logits"))
    if logits is None:
        return None
    with aside(logits.device):
        return softmax_rows(_sample(logits))


def softmax_rows(logits: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the entropy of each token's softmax over experts, in nats, and the logits themselves."""
    return {"entropy": torch.special.entr(logits.softmax(-1)).sum(-1), "logit": logits}


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    rows = _over_tokens(tensor)
    return rows[:: -(-len(rows) // MAX_TOKENS)].float()


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward


def _as_rows(counted: _Counted) -> dict[str, torch.Tensor]:
    counts = counted.counts.float()
    total = counts.sum()
    rows = {"load": counts * (len(counts) / total.clamp(min=1))}
    if counted.asked is not None:
        asked = counted.asked
        if not isinstance(asked, torch.Tensor):
            asked = torch.full((), asked, dtype=torch.float32, device=counts.device)  # without a copy to wait for
        asked = asked.to(counts.device, torch.float32)
        kept = total if counted.kept is None else counted.kept
        rows["dropped"] = (1 - kept / asked.clamp(min=1)).clamp(min=0).reshape(1)
    return rows


def _part(value: Any) -> torch.Tensor | None:
    part = local_part(value) if isinstance(value, torch.Tensor) else None
    return part if part is not None and part.ndim and part.numel() else None


def _counted(tensors: Sequence[torch.Tensor], num_experts: int, said_top_k: int | None) -> _Counted | None:
    """Return tokens per expert, from the simplest thing a router returns: a map, choices, logits, or else a vector."""
    top_k = min(said_top_k or 1, num_experts)
    whole = [tensor for tensor in tensors if not tensor.is_floating_point()]
    maps = [_over_tokens(tensor) for tensor in tensors if tensor.ndim > 1 and tensor.shape[-1] == num_experts]
    for tensor in maps:
        if tensor.dtype is torch.bool:
            return _Counted(tensor.sum(0), len(tensor) * top_k if said_top_k else None)
    for tensor in whole:
        if tensor.ndim > 1 and tensor.dtype is not torch.bool:
            if not tensor.shape[-1] == num_experts != top_k:
                return _Counted(_number_of_each(tensor, num_experts), tensor.numel())
            chosen = _over_tokens(tensor) != 0
            return _Counted(chosen.sum(0), len(chosen) * top_k if said_top_k else None)
    for tensor in maps:
        if tensor.is_floating_point():
            return _Counted(_number_of_each(tensor.topk(top_k).indices, num_experts, are_known=True), None)
    for tensor in whole:
        if tensor.ndim == 1 and tensor.dtype is not torch.bool:
            # Beside a tensor that dispatches tokens it is their count, otherwise the one choice of each token.
            if len(tensor) == num_experts and any(other.ndim == 3 for other in tensors):
                sent = next((other for other in tensors if other.ndim == 3 and other.dtype is torch.bool), None)
                return _Counted(tensor, *((None,) if sent is None else (tensor.sum(), sent.sum())))
            return _Counted(_number_of_each(tensor, num_experts), tensor.numel())
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
