"""What is trained, of the watched models: the part of them that answers about settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from vario.backends.torch import naming
from vario.backends.torch.engines.base import Engine
from vario.backends.torch.optimizer import settings as switches


class TargetSettings:
    """Settings of the watched models and their optimizers."""

    roots: Mapping[str, torch.nn.Module]
    all_modules: Mapping[str, torch.nn.Module]
    all_parameters: Mapping[str, torch.nn.Parameter]
    engine: Engine

    def settings(self) -> dict[str, float]:
        """Return what is trained as numbers that stay constant in ordinary training."""
        return switches.settings(self.all_modules, self.all_parameters)

    def optimizer_settings(self, optimizer: Any) -> dict[str, float]:
        """Return an optimizer's options as numbers that stay constant in ordinary training."""
        return switches.optimizer_settings(getattr(optimizer, "param_groups", None) or [])

    def modules_in_eval(self) -> list[str]:
        """Return the names of the modules in eval mode."""
        return switches.modules_in_eval(self.all_modules)

    def left_out(self, optimizers: Collection[Any]) -> list[str]:
        """Return the names of parameters that have a gradient and are in none of these optimizers."""
        return switches.with_gradients_beside(map(self.engine.parameter_ids, optimizers), self.all_parameters)

    def without_gradient(self, optimizer: Any) -> tuple[list[str], int]:
        """Return the names of parameters in an optimizer that require a gradient and have none, of how many."""
        if not self.engine.has_plain_gradients:
            return [], 0
        return switches.without_gradient(self.engine.parameter_ids(optimizer), self.all_parameters)

    def trained_parameters(self) -> list[str]:
        """Return the names of the parameters that require a gradient."""
        return switches.trained_parameters(self.all_parameters)

    def unknown_parameters(self) -> list[str]:
        """Return the names of parameters added to the model after `vario.watch`; none if an engine replaces them."""
        if not self.engine.keeps_parameters:
            return []
        return switches.unknown_parameters((naming.unwrap(root) for root in self.roots.values()), self.engine.names)
