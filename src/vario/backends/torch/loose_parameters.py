"""Tensors that an optimizer updates and no module holds, as a model that can be watched."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from vario.package import is_own_file


class LooseParameters(torch.nn.Module):
    """Holds tensors by name; nobody calls it."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        names = _names_in(sys._getframe(1), tensors)
        for nth, tensor in enumerate(tensors):
            # Not by `register_parameter`, which refuses what is no Parameter.
            self._parameters[names.get(id(tensor), f"parameter{nth}")] = tensor  # type: ignore[assignment]


def loose_parameters(optimizer: torch.optim.Optimizer) -> LooseParameters | None:
    """The tensors an optimizer holds; None where none of them is trained."""
    tensors = [tensor for group in optimizer.param_groups for tensor in group["params"] if tensor.requires_grad]
    return LooseParameters(tensors) if tensors else None


def _names_in(frame: FrameType | None, tensors: Sequence[torch.Tensor]) -> dict[int, str]:
    """What the code that calls the optimizer calls these tensors: `w1`, or `weights.0` of a list or dict."""
    wanted = {id(tensor) for tensor in tensors}
    found: dict[int, str] = {}
    taken: set[str] = set()
    while frame is not None and len(found) < len(wanted):
        if not is_own_file(frame.f_code.co_filename) and not frame.f_globals.get("__name__", "").startswith("torch."):
            for name, tensor in _tensors_of({**frame.f_globals, **frame.f_locals}):
                if id(tensor) in wanted and id(tensor) not in found and name not in taken:
                    found[id(tensor)] = name
                    taken.add(name)
        frame = frame.f_back
    return found


def _tensors_of(variables: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in variables.items():
        if isinstance(value, torch.Tensor):
            yield name, value
    for name, value in variables.items():
        items = value.items() if type(value) is dict else enumerate(value) if type(value) in (list, tuple) else ()
        yield from (
            (f"{name}.{str(key).replace('.', '_')}", item) for key, item in items if isinstance(item, torch.Tensor)
        )
