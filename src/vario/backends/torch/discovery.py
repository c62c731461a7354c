"""Finding the model of an unchanged training script: the first training forward says that it is time to look."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from vario.backends.base import Undo
from vario.backends.torch import hooks


def on_first_training_forward(call: Callable[[dict[str, torch.nn.Module]], None]) -> Undo:
    """Call once with the models in training, just before the first forward pass that gradients will flow through."""
    found = False

    def before_forward(module: torch.nn.Module, args: Any) -> None:
        nonlocal found
        if found or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        if any(parameter.requires_grad for parameter in module.parameters()):
            found = True
            handle.remove()
            known = set(module._forward_pre_hooks)
            call(models_in_training(module))
            # This call has read its list of hooks already: the new ones would miss where the pass begins.
            for number, hook in list(module._forward_pre_hooks.items()):
                if number not in known:
                    hook(module, args, {})

    # The extra call that torch warns of is what finds a compiled model.
    warnings.filterwarnings("ignore", "Using `torch.compile\\(module\\)` when there are global hooks", UserWarning)
    handle = register_module_forward_pre_hook(hooks.run_eagerly(before_forward))
    return handle.remove


def models_in_training(called: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The outermost live modules whose parameters a live optimizer holds; without optimizers, the one being called."""
    live = gc.get_objects()
    optimizers = [
        item for item in live if issubclass(type(item), torch.optim.Optimizer) and hasattr(item, "param_groups")
    ]
    trained = {number for optimizer in optimizers for number in hooks.parameter_ids(optimizer)}
    modules = [item for item in live if issubclass(type(item), torch.nn.Module) and "_modules" in item.__dict__]
    inner = {id(child) for module in modules for child in module._modules.values() if child is not None}
    outermost = [
        module
        for module in modules
        if id(module) not in inner and any(id(parameter) in trained for parameter in module.parameters())
    ]
    if len(outermost) <= 1:
        return {"": outermost[0] if outermost else called}
    names: dict[str, torch.nn.Module] = {}
    for module in sorted(outermost, key=lambda module: module is not called):
        name = type(module).__name__.lower()
        names[name if name not in names else f"{name}{len(names)}"] = module
    return names
