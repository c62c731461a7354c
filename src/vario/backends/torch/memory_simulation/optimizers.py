"""Optimizers by name, created as torch does by default on a GPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from vario.backends.torch import naming
from vario.core.errors import ConfigError
from vario.core.text import unknown

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
"""Those that process all tensors at once on a GPU by default."""

MakeOptimizer = Callable[[list[torch.nn.Parameter]], Any]


def optimizer_maker(optimizer: Any, model: torch.nn.Module) -> MakeOptimizer:
    """Return how to create an optimizer: from its name, its class, a function of the parameters, or the model's own."""
    if isinstance(optimizer, str):
        if optimizer not in NAMED:
            raise ConfigError(unknown("optimizer", optimizer, NAMED))
        kind, options = NAMED[optimizer]
        return lambda parameters: _as_on_a_gpu(getattr(torch.optim, kind)(parameters, lr=1e-4, **options))
    if isinstance(optimizer, torch.optim.Optimizer):
        return _like(getattr(optimizer, "optimizer", optimizer), model)  # accelerate wraps the real one
    if callable(optimizer):
        return lambda parameters: _as_on_a_gpu(optimizer(parameters))
    raise ConfigError(f"optimizer: expected a name, an optimizer or a function of the parameters, got {optimizer!r}")


def _like(example: torch.optim.Optimizer, model: torch.nn.Module) -> MakeOptimizer:
    """Return a maker of the same kind with the same groups, for other parameters in the same order."""
    taken = inspect.signature(type(example)).parameters
    defaults = {name: _plain(value) for name, value in example.defaults.items() if name in taken}
    trained = [parameter for parameter in naming.unwrap(model).parameters() if parameter.requires_grad]
    places = {id(parameter): place for place, parameter in enumerate(trained)}
    groups = []
    for group in example.param_groups:
        options = {name: _plain(value) for name, value in group.items() if name not in ("params", "param_names")}
        groups.append(([places[id(one)] for one in group["params"] if id(one) in places], options))

    def make(parameters: list[torch.nn.Parameter]) -> Any:
        given: list[Any] = [
            {**options, "params": [parameters[nth] for nth in which]} for which, options in groups if which
        ]
        # One that updates its own copies knows none of the model's parameters.
        return _as_on_a_gpu(type(example)(given or parameters, **defaults))

    return make


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_meta else value


def _as_on_a_gpu(optimizer: Any) -> Any:
    for group in getattr(optimizer, "param_groups", ()):
        chosen = group.get("foreach") is not None or group.get("fused")
        if "foreach" in group and not chosen and type(optimizer).__name__ in FOREACH:
            group["foreach"] = True
    return optimizer
