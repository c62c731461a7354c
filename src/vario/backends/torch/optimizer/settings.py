"""Settings that decide what is trained: modules in eval mode, frozen parameters, optimizer options."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import torch

from vario.backends.torch.engines.base import Engine

OPTIONS = ("weight_decay", "eps", "momentum")
"""Options of an optimizer's groups that are numbers; learning rates are recorded by themselves."""
MOST_GROUPS = 32
"""The most groups whose options are read at every update."""


def settings(modules: Mapping[str, torch.nn.Module], parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, float]:
    """Return what is trained, as numbers."""
    found = {
        "modules_in_eval": float(len(modules_in_eval(modules))),
        "trainable_parameters": float(sum(parameter.requires_grad for parameter in parameters.values())),
    }
    return found | ({"all_in_eval": float(num)} if (num := _all_in_eval(modules)) else {})


def _all_in_eval(modules: Mapping[str, torch.nn.Module]) -> int:
    """Return how many dropouts and batch norms a model has, if every module of it is in eval mode; otherwise 0."""
    if not modules or next(iter(modules.values())).training or any(module.training for module in modules.values()):
        return 0
    return sum(isinstance(each, _NORMS) or (isinstance(each, _DROPOUTS) and each.p > 0) for each in modules.values())


_NORMS, _DROPOUTS = torch.nn.modules.batchnorm._BatchNorm, torch.nn.modules.dropout._DropoutNd


def optimizer_settings(groups: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the options of an optimizer's groups as numbers: `eps` of the first, `eps/1` of the second."""
    found = {"parameters_in_optimizer": float(sum([len(group.get("params") or ()) for group in groups]))}
    for number, group in enumerate(groups[:MOST_GROUPS]):
        suffix = f"/{number}" if number else ""
        for option in OPTIONS:
            if isinstance(value := group.get(option), (int, float)):
                found[option + suffix] = float(value)
        if type(betas := group.get("betas")) is tuple:
            for place, beta in enumerate(betas):
                if type(beta) is float:
                    found[f"beta{place + 1}{suffix}"] = beta
    return found


def modules_in_eval(modules: Mapping[str, torch.nn.Module]) -> list[str]:
    """Return the names of the modules in eval mode, in model order."""
    return [name for name, module in modules.items() if not module.training]


def unknown_parameters(roots: Iterable[torch.nn.Module], known: Container[int]) -> list[str]:
    """Return the names of parameters added to the model after `vario.watch`: a replaced layer, an untied weight."""
    found = []
    for root in roots:
        for name, parameter in root.named_parameters():
            if id(parameter) not in known:
                found.append(name)
    return found


def trained_parameters(parameters: Mapping[str, torch.nn.Parameter]) -> list[str]:
    """Return the names of those that require a gradient."""
    return [name for name, parameter in parameters.items() if parameter.requires_grad]


def with_gradients_beside(held: Iterable[Iterable[int]], parameters: Mapping[str, torch.nn.Parameter]) -> list[str]:
    """Return the names of trained parameters that have a gradient and whose ids are in none of these."""
    ids = {number for numbers in held for number in numbers}
    return [
        name
        for name, parameter in parameters.items()
        if parameter.requires_grad and parameter.grad is not None and id(parameter) not in ids
    ]


def without_gradient(held: Iterable[int], parameters: Mapping[str, torch.nn.Parameter]) -> tuple[list[str], int]:
    """Return the names of trained parameters among these that have no gradient, and how many are trained."""
    ids = frozenset(held)
    own = [(name, one) for name, one in parameters.items() if one.requires_grad and id(one) in ids]
    return [name for name, one in own if one.grad is None], len(own)


def smallest(
    parameters: Mapping[str, torch.nn.Parameter], engine: Engine, optimizer: torch.optim.Optimizer | None
) -> torch.nn.Parameter | None:
    """Return the smallest trainable parameter of an optimizer; with None, of all of them."""
    held = None if optimizer is None else set(engine.parameter_ids(optimizer))
    trained = [
        parameter
        for parameter in parameters.values()
        if parameter.requires_grad and parameter.numel() and (held is None or id(parameter) in held)
    ]
    return min(trained, key=lambda parameter: parameter.numel(), default=None)
