"""Copies of models and batches that have shapes and dtypes, and no memory."""

from __future__ import annotations

import copy
import functools
import importlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_map

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
)

PART_OF_A_MODEL = ("torch", "transformers", "peft", "accelerate")
"""Packages whose hooks do part of the model's work, as weight norm does. A user's own hooks only observe: they would
read tensors without values, and keep them."""

GLOBAL_HOOKS = [
    hooks
    for home in ("torch.nn.modules.module", "torch.optim.optimizer")
    for name, hooks in vars(importlib.import_module(home)).items()
    if name.startswith("_global_") and "hooks" in name and isinstance(hooks, dict)
]
"""Hooks for all modules and all optimizers; `vario run` finds models through them."""


@contextmanager
def unwatched() -> Iterator[None]:
    """Disable all global hooks meanwhile."""
    kept = [dict(hooks) for hooks in GLOBAL_HOOKS]
    for hooks in GLOBAL_HOOKS:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in zip(GLOBAL_HOOKS, kept, strict=True):
            hooks.update(before)


def fake_model(model: torch.nn.Module, mode: Any, dtype: torch.dtype | None = None) -> torch.nn.Module:
    """Return a copy of a model with fake tensors; tied weights stay tied, hooks of others are left out."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, torch.Tensor):  # a value cached from a pass, a table that is not a buffer
                memo[id(value)] = fake_tensor(value, mode)
        for name in (*module._parameters, *module._buffers):
            tensor = module._parameters.get(name) if name in module._parameters else module._buffers[name]
            if tensor is not None and id(tensor) not in memo:
                memo[id(tensor)] = fake_tensor(tensor, mode, dtype)
        for name in HOOKS:
            hooks = getattr(module, name, None)
            if hooks:
                memo[id(hooks)] = OrderedDict(
                    (key, hook) for key, hook in hooks.items() if _home(hook) in PART_OF_A_MODEL
                )
    return copy.deepcopy(model, memo)


def foreign_hooks(model: torch.nn.Module) -> int:
    """Return how many hooks a copy of the model lacks, not counting those of a running Monitor."""
    hooks = (hook for module in model.modules() for name in HOOKS[:4] for hook in getattr(module, name, {}).values())
    return sum(_home(hook) not in (*PART_OF_A_MODEL, "vario") for hook in hooks)


def _home(hook: Any) -> str:
    """Return the package of a hook."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    return str(getattr(hook, "__module__", None) or type(hook).__module__).partition(".")[0]


def fake_tensor(tensor: torch.Tensor, mode: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a tensor of the same shape without memory; floating-point ones in another dtype if given."""
    kept = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    with mode:
        made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=kept, device="cpu")
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    # Attributes that code sets on parameters, such as marks of tensor parallelism, stay with them.
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        made.__dict__.update(tensor.__dict__)
    return made


def fake_batch(batch: Any, mode: Any) -> Any:
    """Return a batch of the same shapes without memory; other values stay."""
    return tree_map(lambda one: fake_tensor(one, mode) if isinstance(one, torch.Tensor) else one, batch)
