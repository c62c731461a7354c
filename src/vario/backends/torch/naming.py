"""Names of modules and parameters, without what wrappers add."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import torch

from vario.core.records import ROOT

_WRAPPER_SEGMENTS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_WRAPPERS = frozenset(
    {"DistributedDataParallel", "DataParallel", "Float16Module", "DeepSpeedEngine", "DeepSpeedHybridEngine"}
    | {"PipelineEngine"}
)
_HOLDERS = ("_orig_mod", "_fsdp_wrapped_module")
"""Attributes under which wrappers keep the inner module, when that adds a segment to names."""


def unwrap(model: torch.nn.Module) -> torch.nn.Module:
    """Return the user's own module inside wrappers for data parallelism, precision and torch.compile."""
    while True:
        holders = ("module",) if type(model).__name__ in _WRAPPERS else _HOLDERS
        inside = (getattr(model, holder, None) for holder in holders if holder in model._modules)
        wrapped = next((found for found in inside if isinstance(found, torch.nn.Module)), None)
        if wrapped is None:
            return model
        model = wrapped


def clean(name: str) -> str:
    """Return a dotted name without the segments that wrappers insert."""
    if not any(segment in name for segment in _WRAPPER_SEGMENTS):
        return name  # the usual case, and there may be a hundred thousand
    return ".".join(segment for segment in name.split(".") if segment not in _WRAPPER_SEGMENTS)


def named_modules(model: torch.nn.Module, prefix: str = "") -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield all modules of an unwrapped model, each once, the outermost one as `root`."""
    numbers = _numbers(model)
    for name, module in model.named_modules():
        # By the names of its children: a scripted module keeps them in a table that is not a dict.
        if not _WRAPPER_SEGMENTS.isdisjoint(name for name, _ in module.named_children()):
            continue  # the inner module has the same cleaned name
        yield prefix + (clean(_numbered(name, numbers)) or ROOT), module


def named_parameters(model: torch.nn.Module, prefix: str = "") -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield all parameters of an unwrapped model, shared ones once, under their first name."""
    numbers = _numbers(model)
    if type(model).named_parameters is not torch.nn.Module.named_parameters:
        for name, parameter in model.named_parameters():
            yield prefix + clean(_numbered(name, numbers)), parameter
        return
    # Like `named_parameters`, which takes several times as long: a model may have a hundred thousand.
    seen: set[int] = set()
    for name, module in model.named_modules():
        begins = prefix + clean(_numbered(name, numbers))
        begins = f"{begins}." if begins != prefix else prefix
        for key, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield begins + key, parameter


def entries(root: torch.nn.Module) -> list[torch.nn.Module]:
    """Return what a loop calls of a model that is not called as a whole: its outermost callable parts."""
    found: dict[int, torch.nn.Module] = {}
    waiting = list(root.children())
    while waiting:
        module = waiting.pop(0)
        if has_forward(module):
            found[id(module)] = module
        else:
            waiting += module.children()
    return list(found.values())


def entered(roots: Mapping[str, torch.nn.Module]) -> list[torch.nn.Module]:
    """Return the modules that a pass may begin with."""
    return [module for root in roots.values() for module in (root, *entries(root))]


def has_forward(module: torch.nn.Module) -> bool:
    """Whether a module can be called: a ModuleDict cannot."""
    # Without accessing it: a scripted module creates its `forward` when an instance is asked for it.
    own = inspect.getattr_static(type(module), "forward")
    return own is not torch.nn.Module.forward or "forward" in vars(module)


def prefixes(roots: Mapping[str, torch.nn.Module]) -> dict[str, str]:
    """Return the prefix of names in each of several models: its key; empty for the chunks of one pipeline.

    Megatron trains a list of chunks as one model. Layers are numbered across chunks, so no two share a name.
    """
    if len(roots) > 1 and all(comes_from_megatron(root) for root in roots.values()):
        names = [name for root in roots.values() for name, _ in named_parameters(unwrap(root))]
        if len(set(names)) == len(names):
            return dict.fromkeys(roots, "")
    return {key: key for key in roots}


def all_modules(roots: Mapping[str, torch.nn.Module]) -> dict[str, torch.nn.Module]:
    """Return the modules of several models by name."""
    found: dict[str, torch.nn.Module] = {}
    for key, prefix in prefixes(roots).items():
        for name, module in named_modules(unwrap(roots[key]), prefix):
            # Each chunk has a `decoder`, and is a `root`.
            found[name if name not in found else key + name] = module
    return found


def all_parameters(roots: Mapping[str, torch.nn.Module]) -> dict[str, torch.nn.Parameter]:
    """Return the parameters of several models by name. One that models share has its name in the first of them."""
    found: dict[str, torch.nn.Parameter] = {}
    for key, prefix in prefixes(roots).items():
        known = set(map(id, found.values()))
        own = named_parameters(unwrap(roots[key]), prefix)
        found |= {name: parameter for name, parameter in own if id(parameter) not in known}
    return found


def comes_from_megatron(part: object) -> bool:
    """Whether an object's class comes from Megatron."""
    return any(base.__module__.partition(".")[0] == "megatron" for base in type(part).__mro__)


_Numbers = dict[tuple[str, str], str]
"""By container and index in it: the index in the whole model."""


def _numbers(model: torch.nn.Module) -> _Numbers:
    """Map indices that this rank counts from 0 to those of the whole model.

    These are layers of a pipeline stage and experts of a rank. The same name on two ranks must be the same parameter.
    """
    found: _Numbers = {}
    above: dict[str, torch.nn.Module] = {}
    for name, module in model.named_modules():
        above[name] = module
        if not isinstance(module, torch.nn.ModuleList):
            continue
        parent = name.rpartition(".")[0]
        experts = getattr(above.get(parent.rpartition(".")[0]), "local_expert_indices", None)
        if name.endswith("local_experts") and experts is not None and len(experts) == len(module):
            numbers = [int(number) for number in experts]
        else:
            counted = (vars(layer).get("layer_number") for layer in module if comes_from_megatron(layer))
            numbers = [number - 1 for number in counted if isinstance(number, int)]
        if len(set(numbers)) == len(module):
            found.update(((name, str(at)), str(number)) for at, number in enumerate(numbers) if at != number)
    return found


def _numbered(name: str, numbers: _Numbers) -> str:
    if not numbers:
        return name
    segments = name.split(".")
    containers = (".".join(segments[:at]) for at in range(len(segments)))
    return ".".join(numbers.get((here, segment), segment) for here, segment in zip(containers, segments, strict=True))


def module_structure(
    modules: Mapping[str, torch.nn.Module], size: Callable[[torch.nn.Parameter], int]
) -> list[dict[str, Any]]:
    """Return modules as in `structure.json`; `size(parameter)`: its elements as a whole."""
    return [
        {"name": name, "class": _class_name(module), "num_parameters": sum(map(size, _own_parameters(module)))}
        for name, module in modules.items()
    ]


def _own_parameters(module: torch.nn.Module) -> Iterable[torch.nn.Parameter]:
    """Yield the parameters of the module itself, each once."""
    return {id(held): held for held in module._parameters.values() if held is not None}.values()


def shared_names(roots: Mapping[str, torch.nn.Module]) -> dict[int, list[str]]:
    """Return all names of parameters that several modules share, by the parameter's identity."""
    found: dict[int, list[str]] = {}
    for key, prefix in prefixes(roots).items():
        model = unwrap(roots[key])
        numbers = _numbers(model)
        for name, parameter in model.named_parameters(remove_duplicate=False):
            found.setdefault(id(parameter), []).append(prefix + clean(_numbered(name, numbers)))
    return {number: names for number, names in found.items() if len(names) > 1}


def are_shared(roots: Mapping[str, torch.nn.Module], num_parameters: int) -> bool:
    """Whether modules refer to more parameters than there are."""
    modules = (module for root in roots.values() for _, module in unwrap(root).named_modules(remove_duplicate=False))
    return sum(1 for module in modules for held in module._parameters.values() if held is not None) > num_parameters


def _class_name(module: torch.nn.Module) -> str:
    """Return the user's class: `fully_shard` derives its own from it."""
    name, below = type(module).__name__, type(module).__bases__
    is_sharded = len(below) == 2 and below[0].__name__ == "FSDPModule"
    return below[1].__name__ if is_sharded else name


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype without the name of its package."""
    return str(dtype).removeprefix("torch.")
