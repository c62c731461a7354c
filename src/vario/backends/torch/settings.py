"""Switches that decide what is trained, as numbers: how many modules are in evaluation mode, what is frozen, ..."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

OPTIONS = ("weight_decay", "eps")
"""Options of an optimizer that schedules leave alone; learning rates, momentum and betas are often scheduled."""


def settings(
    modules: Mapping[str, torch.nn.Module],
    parameters: Mapping[str, torch.nn.Parameter],
    groups: Iterable[Mapping[str, Any]],
) -> dict[str, float]:
    """The switches as they stand."""
    groups = list(groups)
    found = {
        "modules_in_eval": float(sum(not module.training for module in modules.values())),
        "trainable_parameters": float(sum(parameter.requires_grad for parameter in parameters.values())),
        "parameters_in_optimizer": float(sum(len(group.get("params") or ()) for group in groups)),
    }
    for option in OPTIONS:
        value = groups[0].get(option) if groups else None
        if isinstance(value, (int, float)):
            found[option] = float(value)
    return found
