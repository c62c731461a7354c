"""Tensors that an optimizer updates and no module contains, as a model that can be watched."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from vario.core.package import is_own_file


class LooseParameters(torch.nn.Module):
    """Contains tensors by name; it is never called."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        names = _names_in(sys._getframe(1), tensors)
        for nth, tensor in enumerate(tensors):
            # Not by `register_parameter`, which refuses tensors that are not Parameters.
            self._parameters[names.get(id(tensor), f"parameter{nth}")] = tensor  # type: ignore[assignment]


def loose_parameters(optimizer: torch.optim.Optimizer) -> LooseParameters | None:
    """Return the tensors of an optimizer; None if none of them is trainable."""
    tensors = [tensor for group in optimizer.param_groups for tensor in group["params"] if tensor.requires_grad]
    return LooseParameters(tensors) if tensors else None


def _names_in(frame: FrameType | None, tensors: Sequence[torch.Tensor]) -> dict[int, str]:
    """Return these tensors' names in the code that calls the optimizer: `w1`, or `weights.0` of a list or dict."""
    wanted = {id(tensor) for tensor in tensors}
    found: dict[int, str] = {}
    while frame is not None and len(found) < len(wanted):
        module = frame.f_globals.get("__name__", "")
        if not is_own_file(frame.f_code.co_filename) and not str(module).startswith("torch."):
            variables = {**frame.f_globals, **frame.f_locals}
            plain = {id(value): name for name, value in variables.items() if id(value) in wanted}
            # A single one among many may be the variable of a loop over the list that has their names.
            ways = (plain, _in_containers(variables, wanted)) if len(plain) == len(wanted) else ()
            for names in ways or (_in_containers(variables, wanted), plain):
                for number, name in names.items():
                    if name not in found.values():
                        found.setdefault(number, name)
        frame = frame.f_back
    return found


def _in_containers(variables: Mapping[str, Any], wanted: set[int]) -> dict[int, str]:
    found: dict[int, str] = {}
    for name, value in variables.items():
        items = value.items() if type(value) is dict else enumerate(value) if type(value) in (list, tuple) else ()
        for key, item in items:
            if id(item) in wanted:
                found.setdefault(id(item), f"{name}.{str(key).replace('.', '_')}")
    return found
