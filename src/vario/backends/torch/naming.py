"""Names of modules and parameters, freed from what wrappers add."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from vario.records import ROOT, Structure

_WRAPPER_SEGMENTS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_WRAPPERS = ("DistributedDataParallel", "DataParallel")


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """The user's own module inside DataParallel, DistributedDataParallel and torch.compile wrappers."""
    while True:
        wrapped = (
            getattr(model, "module", None) if type(model).__name__ in _WRAPPERS else getattr(model, "_orig_mod", None)
        )
        if not isinstance(wrapped, torch.nn.Module):
            return model
        model = wrapped


def clean(name: str) -> str:
    """A dotted name without the segments wrappers insert."""
    return ".".join(segment for segment in name.split(".") if segment not in _WRAPPER_SEGMENTS)


def named_modules(model: torch.nn.Module, prefix: str = "") -> Iterator[tuple[str, torch.nn.Module]]:
    """All modules of an unwrapped model, each once, the outermost one called `root`."""
    for name, module in model.named_modules():
        if hasattr(module, "_orig_mod") or hasattr(module, "_checkpoint_wrapped_module"):
            continue  # the module inside carries the same cleaned name
        yield prefix + (clean(name) or ROOT), module


def named_parameters(model: torch.nn.Module, prefix: str = "") -> Iterator[tuple[str, torch.nn.Parameter]]:
    """All parameters of an unwrapped model, shared ones once, under their first name."""
    for name, parameter in model.named_parameters():
        yield prefix + clean(name), parameter


def structure(model: torch.nn.Module, prefix: str = "") -> Structure:
    """Modules and parameters with shapes and dtypes, in model order."""
    modules = [
        {
            "name": name,
            "class": type(module).__name__,
            "num_parameters": sum(parameter.numel() for parameter in module.parameters(recurse=False)),
        }
        for name, module in named_modules(model, prefix)
    ]
    aliases: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), []).append(prefix + clean(name))
    parameters = [
        {
            "name": name,
            "shape": list(parameter.shape),
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "trainable": parameter.requires_grad,
            "shared_with": aliases[id(parameter)][1:],
        }
        for name, parameter in named_parameters(model, prefix)
    ]
    return {"modules": modules, "parameters": parameters}
