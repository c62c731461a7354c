"""Switches that decide what is trained: which modules are in evaluation mode, what is frozen, optimizer options."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

import torch

OPTIONS = ("weight_decay", "eps")
"""Options of an optimizer that schedules leave alone; learning rates, momentum and betas are often scheduled."""


def settings(
    modules: Mapping[str, torch.nn.Module],
    parameters: Mapping[str, torch.nn.Parameter],
    groups: Iterable[Mapping[str, Any]],
) -> dict[str, float]:
    """The switches as numbers."""
    groups = list(groups)
    found = {
        "modules_in_eval": float(len(modules_in_eval(modules))),
        "trainable_parameters": float(sum(parameter.requires_grad for parameter in parameters.values())),
        "parameters_in_optimizer": float(sum(len(group.get("params") or ()) for group in groups)),
    }
    for option in OPTIONS:
        value = groups[0].get(option) if groups else None
        if isinstance(value, (int, float)):
            found[option] = float(value)
    return found


def modules_in_eval(modules: Mapping[str, torch.nn.Module]) -> list[str]:
    """Names of the modules that are in evaluation mode, in model order."""
    return [name for name, module in modules.items() if not module.training]


def unknown_parameters(roots: Iterable[torch.nn.Module], known: Container[int]) -> list[str]:
    """Names of parameters that came into the model after it was watched: a layer that was replaced, a tie undone."""
    found = []
    for root in roots:
        for name, parameter in root.named_parameters():
            if id(parameter) not in known:
                found.append(name)
    return found
