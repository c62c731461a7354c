"""Optimizers by name, made as torch makes them by default on a GPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from vario.errors import ConfigError
from vario.text import unknown

NAMED: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("AdamW", {}),
    "adamw_fused": ("AdamW", {"fused": True}),
    "adam": ("Adam", {}),
    "adam_fused": ("Adam", {"fused": True}),
    "sgd": ("SGD", {"momentum": 0.9}),
    "sgd_plain": ("SGD", {}),
    "adafactor": ("Adafactor", {}),
    "rmsprop": ("RMSprop", {}),
    "adagrad": ("Adagrad", {}),
}
FOREACH = {"Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop"}
"""Those that take all tensors at once on a GPU unless told otherwise."""

MakeOptimizer = Callable[[list[torch.nn.Parameter]], Any]


def optimizer_maker(optimizer: Any) -> MakeOptimizer:
    """How to make an optimizer: from its name, its class, a function of the parameters, or another one like it."""
    if isinstance(optimizer, str):
        if optimizer not in NAMED:
            raise ConfigError(unknown("optimizer", optimizer, NAMED))
        kind, options = NAMED[optimizer]
        return lambda parameters: _as_on_a_gpu(getattr(torch.optim, kind)(parameters, lr=1e-4, **options))
    if isinstance(optimizer, torch.optim.Optimizer):
        made = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps the real one
        taken = inspect.signature(type(made)).parameters
        options = {name: value for name, value in made.defaults.items() if name in taken}
        return lambda parameters: _as_on_a_gpu(type(made)(parameters, **options))
    if callable(optimizer):
        return lambda parameters: _as_on_a_gpu(optimizer(parameters))
    raise ConfigError(f"optimizer: expected a name, an optimizer or a function of the parameters, got {optimizer!r}")


def _as_on_a_gpu(optimizer: Any) -> Any:
    for group in getattr(optimizer, "param_groups", ()):
        chosen = group.get("foreach") is not None or group.get("fused")
        if "foreach" in group and not chosen and type(optimizer).__name__ in FOREACH:
            group["foreach"] = True
    return optimizer
