"""Finding tensors in whatever a module takes and returns, and laying them flat for a reduction."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from vario.core.records import TensorSpec

MAX_DEPTH = 6
"""Outputs nested deeper than this are caches and the like, not activations."""


def leaves(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors in nested tuples, lists, dicts and dataclasses, each with its dotted path below `path`."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif depth >= MAX_DEPTH:
        return
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}", depth + 1)
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}.{index}", depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name, None), f"{path}.{field.name}", depth + 1)


def inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors a module was called with: `input` when there is one positional argument, else `input.0`, ..."""
    yield from leaves(args[0] if len(args) == 1 else args, "input")
    for key, value in kwargs.items():
        yield from leaves(value, f"input.{key}")


def local_part(tensor: torch.Tensor) -> torch.Tensor | None:
    """The dense numbers of a tensor that live on this rank, or None for a tensor without numbers (meta, quantized)."""
    if is_inside_transform():
        return None
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        if hasattr(tensor, "to_local"):
            tensor = tensor.to_local()
        if hasattr(tensor, "fake_mode"):
            return None
    tensor = tensor.detach()
    if tensor.is_meta or tensor.is_quantized or _is_captured(tensor):
        return None
    return _nested_values(tensor) if tensor.is_nested else tensor


def is_inside_transform() -> bool:
    """Whether torch.func (vmap, grad, ...) is transforming what runs now: no tensor shows its numbers then."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _is_captured(tensor: torch.Tensor) -> bool:
    """Whether a CUDA graph is being captured: its replays would write into rows that are long used otherwise."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _nested_values(tensor: torch.Tensor) -> torch.Tensor | None:
    """The elements of a nested tensor's parts, or None where gathering them would wait for the device."""
    if tensor.layout is torch.jagged:
        has_holes = tensor.lengths() is not None  # type: ignore[attr-defined]
    else:
        has_holes = tensor.values().numel() != tensor.numel()
    if has_holes:
        return tensor.contiguous().values() if tensor.device.type == "cpu" else None
    return tensor.values()


def why_without_numbers(tensor: torch.Tensor) -> str:
    """Why a tensor was passed over, in words."""
    for is_so, reason in (
        (is_inside_transform(), "it is inside a torch.func transform"),
        (_is_captured(tensor), "it is inside a CUDA graph"),
        (tensor.is_meta, "it is a meta tensor"),
        (tensor.is_quantized, "it is quantized"),
        (tensor.layout is torch.sparse_coo, "it is sparse and not coalesced, and coalescing would wait for the device"),
        (tensor.layout is not torch.strided, f"its layout is {tensor.layout}"),
    ):
        if is_so:
            return reason
    return f"a {type(tensor).__name__} shows no numbers"


def form(tensor: torch.Tensor) -> TensorSpec:
    """Shape and dtype of what this rank has of a tensor; one whose rows differ in length shows how many elements."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    try:
        return tensor.shape, tensor.dtype
    except RuntimeError:
        return torch.Size((tensor.numel(),)), tensor.dtype


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as a one-dimensional view when they fill their storage in any order, else as a copy."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    if torch.ops.aten.is_non_overlapping_and_dense(tensor):
        # Statistics do not care about the order, so a transposed tensor is read as it lies.
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1)


@contextlib.contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Compute beside the training: no gradients, the precision asked for, and unseen by what counts its operators."""
    with torch.no_grad(), torch.autocast(device.type, enabled=False), unseen():
        yield


def unseen() -> contextlib.AbstractContextManager[None]:
    """Compute unseen by dispatch modes.

    Selective checkpointing counts operators in one: ours, not repeated in backward, would be taken for the model's.
    """
    if not torch._C._len_torch_dispatch_stack():
        return contextlib.nullcontext()
    quiet: contextlib.AbstractContextManager[None] = _disable_current_modes()
    return quiet
