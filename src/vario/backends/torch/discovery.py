"""Finding the models of an unchanged training script."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from vario.backends.torch import hooks, module_hooks
from vario.backends.torch.engines import ENGINES


class Search:
    """Looks for models in training: before the first forward that gradients flow through, and again whenever an
    optimizer updates parameters that nobody follows."""

    def __init__(
        self,
        found: Callable[[dict[str, torch.nn.Module]], None],
        is_followed: Callable[[torch.optim.Optimizer], bool],
    ) -> None:
        self._found = found
        self._is_followed = is_followed
        self._known: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._given_up: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._handle: Any = None
        # The extra call that torch warns of is what finds a compiled model.
        warnings.filterwarnings("ignore", "Using `torch.compile\\(module\\)` when there are global hooks", UserWarning)
        self._updates = register_optimizer_step_pre_hook(self._update_began)
        self._look()

    def stop(self) -> None:
        """Look no more."""
        self._updates.remove()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _look(self) -> None:
        if self._handle is not None:
            return

        def before_forward(module: torch.nn.Module, args: Any) -> None:
            if self._handle is None or torch.compiler.is_compiling() or not torch.is_grad_enabled():
                return
            if any(parameter.requires_grad for parameter in module.parameters()):
                self._handle.remove()
                self._handle = None
                self._tell(module, args)

        self._handle = register_module_forward_pre_hook(module_hooks.run_eagerly(before_forward))

    def _tell(self, module: torch.nn.Module, args: Any) -> None:
        models = models_in_training(module, self._known)
        if not models:
            return  # nothing trains it yet; the first update says when to look again
        self._known.update(models.values())
        before = set(module._forward_pre_hooks)
        self._found(models)
        # This call has read its list of hooks already: the new ones would miss where the pass begins.
        for number, hook in list(module._forward_pre_hooks.items()):
            if number not in before:
                hook(module, args, {})

    def _update_began(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer not in self._given_up and not self._is_followed(optimizer):
            self._given_up.add(optimizer)
            self._look()


def live_optimizers() -> list[torch.optim.Optimizer]:
    """All torch optimizers there are."""
    return [
        item
        for item in gc.get_objects()
        if issubclass(type(item), torch.optim.Optimizer) and hasattr(item, "param_groups")
    ]


def models_in_training(called: torch.nn.Module, known: Collection[torch.nn.Module] = ()) -> dict[str, torch.nn.Module]:
    """The outermost live modules whose parameters a live optimizer holds, without those known before."""
    trained = {number for optimizer in live_optimizers() for number in hooks.parameter_ids(optimizer)}
    trained.update(number for engine in ENGINES for number in engine.part.trained_elsewhere())
    live = gc.get_objects()
    modules = [item for item in live if issubclass(type(item), torch.nn.Module) and "_modules" in item.__dict__]
    inner = {id(child) for module in modules for child in module._modules.values() if child is not None}
    outermost = [
        module
        for module in modules
        if id(module) not in inner
        and module not in known
        and any(id(parameter) in trained for parameter in module.parameters())
    ]
    if len(outermost) == 1:
        return {"": outermost[0]}
    names: dict[str, torch.nn.Module] = {}
    for module in sorted(outermost, key=lambda module: module is not called):
        name = type(module).__name__.lower()
        names[name if name not in names else f"{name}{len(names)}"] = module
    return names
