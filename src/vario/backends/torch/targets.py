"""The modules and parameters under watch, by name, and where their tensors are."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from vario.backends.torch import hooks, naming, updates
from vario.backends.torch.engines import plain
from vario.errors import ModelError
from vario.records import Structure
from vario.selector import Choice
from vario.statistics import Values

NamedTensors = tuple[list[str], list[torch.Tensor]]

_watched_modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


class Targets:
    """What a Selector chooses of one or several models."""

    def __init__(self, models: Any, selector: Choice) -> None:
        self.roots = _as_models(models)
        for model in self.roots.values():
            _check(model)
        self.all_modules = modules = {
            name: module for prefix, root in self._bare() for name, module in naming.named_modules(root, prefix)
        }
        self.all_parameters = {
            name: parameter
            for prefix, root in self._bare()
            for name, parameter in naming.named_parameters(root, prefix)
        }
        selector.check(list(modules), list(self.all_parameters))
        self.modules = {name: modules[name] for name in selector.modules(modules)}
        self.parameters = {name: self.all_parameters[name] for name in selector.parameters(self.all_parameters)}
        self._names = {id(parameter): name for name, parameter in self.parameters.items()}
        self._known = {id(parameter) for parameter in self.all_parameters.values()}

    def _bare(self) -> list[tuple[str, torch.nn.Module]]:
        return [(prefix, naming.unwrap(root)) for prefix, root in self.roots.items()]

    def claim(self) -> Callable[[], None]:
        """Keep others from watching any of these modules; the result gives them back."""
        claimed = [module for _, root in self._bare() for module in root.modules()]
        _watched_modules.update(claimed)
        return lambda: _watched_modules.difference_update(claimed)

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an optimizer that updates nothing of this."""
        if not self.are_updated_by(optimizer):
            raise ModelError(
                f"watch: {type(optimizer).__name__} holds none of the model's parameters. Was the model replaced "
                "or moved to another copy after the optimizer was made?"
            )

    def are_updated_by(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer holds any of the models' parameters."""
        return not self._known.isdisjoint(hooks.parameter_ids(optimizer))

    def structure(self) -> Structure:
        """Modules and parameters, as `structure.json` holds them."""
        parts = [naming.structure(root, prefix) for prefix, root in self._bare()]
        return {key: [item for part in parts for item in part[key]] for key in ("modules", "parameters")}

    def gradients(self, parameters: Iterable[torch.Tensor]) -> NamedTensors:
        """Names and gradients of those parameters that are chosen and have one."""
        return self._pick(parameters, plain.gradient)

    def weights(self, optimizer: Any) -> NamedTensors:
        """Names and values of the chosen parameters an optimizer holds; of all trainable ones without an optimizer."""
        held = plain.parameters(optimizer) if optimizer is not None else self._trainable()
        return self._pick(held, lambda parameter: parameter)

    def _trainable(self) -> Iterable[torch.Tensor]:
        return (parameter for parameter in self.parameters.values() if parameter.requires_grad)

    def frozen_weights(self) -> NamedTensors:
        """Names and values of the chosen parameters that need no gradient."""
        frozen = (parameter for parameter in self.parameters.values() if not parameter.requires_grad)
        return self._pick(frozen, lambda parameter: parameter)

    def moments(self, optimizer: Any) -> NamedTensors:
        """Names (`weight:exp_avg`) and values of every tensor of an optimizer's state."""
        names: list[str] = []
        tensors: list[torch.Tensor] = []
        for parameter in plain.parameters(optimizer) if optimizer is not None else ():
            name = self._names.get(id(parameter))
            if name is not None:
                for key, tensor in plain.state_tensors(optimizer, parameter):
                    names.append(f"{name}:{key}")
                    tensors.append(tensor)
        return names, tensors

    def sign_agreement(self, optimizer: Any) -> NamedTensors:
        """Names and the share of elements whose gradient points where the momentum does."""
        return ([], []) if optimizer is None else updates.sign_agreement(optimizer, self._name_of)

    def update_histograms(
        self, optimizer: Any, bins: int, low: float, high: float
    ) -> tuple[list[str], Callable[[], Values]]:
        """Names, and histograms of Adam's update and ratio that wait for the device."""
        if optimizer is None:
            return [], lambda: np.empty((0, bins))
        return updates.update_histograms(optimizer, self._name_of, bins, low, high)

    def _name_of(self, parameter: torch.Tensor) -> str | None:
        return self._names.get(id(parameter))

    def _pick(self, parameters: Iterable[torch.Tensor], value: Callable[[Any], torch.Tensor | None]) -> NamedTensors:
        names: list[str] = []
        tensors: list[torch.Tensor] = []
        for parameter in parameters:
            name = self._names.get(id(parameter))
            tensor = value(parameter) if name is not None else None
            if name is not None and tensor is not None:
                names.append(name)
                tensors.append(tensor)
        return names, tensors

    def device_scalars(self) -> dict[str, float]:
        """Memory in use on the model's CUDA devices, in bytes."""
        if not torch.cuda.is_available() or not torch.cuda.is_initialized():
            return {}
        devices = {parameter.device for parameter in self.parameters.values() if parameter.device.type == "cuda"}
        scalars: dict[str, float] = {}
        for device in sorted(devices, key=str):
            stats = torch.cuda.memory_stats_as_nested_dict(device)
            suffix = "" if len(devices) == 1 else f"_{device.index}"
            scalars[f"device_memory_bytes{suffix}"] = stats["allocated_bytes"]["all"]["current"]
            scalars[f"device_memory_peak_bytes{suffix}"] = stats["allocated_bytes"]["all"]["peak"]
            scalars[f"device_memory_reserved_bytes{suffix}"] = stats["reserved_bytes"]["all"]["current"]
        return scalars


def is_watched(model: torch.nn.Module) -> bool:
    """Whether a Monitor has this model, or a part of it, already."""
    return any(module in _watched_modules for module in model.modules())


def _check(model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"watch: expected a torch.nn.Module, got {type(model).__name__}")
    bare = naming.unwrap(model)
    name = type(bare).__name__
    if next(bare.parameters(), None) is None:
        raise ModelError(f"watch: {name} has no parameters, so there is nothing to train or to watch")
    for parameter_name, parameter in bare.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            raise ModelError(
                f"watch: '{parameter_name}' of {name} has no shape yet. Call the model once with a batch before."
            )
    if is_watched(bare):
        raise ModelError(f"watch: {name}, or a part of it, is watched already. Close that Monitor first.")


def _as_models(models: Any) -> dict[str, Any]:
    if isinstance(models, torch.nn.Module) or not isinstance(models, (Mapping, Sequence)):
        return {"": models}
    named = models.items() if isinstance(models, Mapping) else enumerate(models)
    return {f"{name}.": model for name, model in named}
