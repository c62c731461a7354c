"""Read tensors of modules, and flatten them for a reduction."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from vario.core.records import TensorSpec


def local_part(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return this rank's dense values of a tensor, or None for a tensor without values (meta, quantized)."""
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


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor was modified; negative for one that does not count it, and may always have changed."""
    try:
        return tensor._version
    except RuntimeError:
        return -1  # an inference tensor; asking it first takes longer than everything else here


def is_inside_transform() -> bool:
    """Whether torch.func (vmap, grad, ...) is transforming what runs now: tensor values cannot be read then."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _is_captured(tensor: torch.Tensor) -> bool:
    """Whether a CUDA graph is being captured: its replays would write into rows that have long been reused."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _nested_values(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the elements of a nested tensor's parts, or None if gathering them would wait for the device."""
    if tensor.layout is torch.jagged:
        has_holes = tensor.lengths() is not None  # type: ignore[attr-defined]
    else:
        has_holes = tensor.values().numel() != tensor.numel()
    if has_holes:
        return tensor.contiguous().values() if tensor.device.type == "cpu" else None
    return tensor.values()


def why_without_numbers(tensor: torch.Tensor) -> str:
    """Return why a tensor was skipped, in words."""
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
    return f"a {type(tensor).__name__} cannot be read"


def form(tensor: torch.Tensor) -> TensorSpec:
    """Return shape and dtype of this rank's part of a tensor; one with rows of different lengths has only a size."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    try:
        return tensor.shape, tensor.dtype
    except RuntimeError:
        return torch.Size((tensor.numel(),)), tensor.dtype


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements as a one-dimensional view if they fill their storage in any order, else as a copy."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    if torch.ops.aten.is_non_overlapping_and_dense(tensor):
        # Statistics do not depend on the order, so a transposed tensor is read in memory order.
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1)


def stored_elements(tensor: torch.Tensor) -> tuple[torch.Tensor | None, int]:
    """Return the stored elements, flattened, and how many elements the tensor has; a sparse tensor stores fewer."""
    part = local_part(tensor)
    if part is None:
        return None, 0
    if part.layout is torch.strided:
        return flat(part), part.numel()
    if part.layout is torch.sparse_coo:
        if not part.is_coalesced():
            if part.device.type != "cpu":
                return None, 0  # coalescing on a device waits for it
            part = part.coalesce()
        return flat(part.values()), part.numel()
    if part.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        return flat(part.values()), part.numel()
    return None, 0


@contextlib.contextmanager
def aside(device: torch.device) -> Iterator[None]:
    """Compute beside the training: no gradients, the requested precision, and invisible to operator counters."""
    with torch.no_grad(), torch.autocast(device.type, enabled=False), unseen():
        yield


def unseen() -> contextlib.AbstractContextManager[None]:
    """Compute without being seen by dispatch modes.

    Selective checkpointing counts operators in one: ours, not repeated in backward, would be taken for the model's.
    """
    if not torch._C._len_torch_dispatch_stack():
        return contextlib.nullcontext()
    quiet: contextlib.AbstractContextManager[None] = _disable_current_modes()
    return quiet


def plain_number(value: Any) -> float | None:
    """Return one number that is on the host; None for a tensor on a device."""
    if type(value) is float:
        return value
    device = getattr(value, "device", None)
    if device is None or str(device).startswith("cpu"):
        return float(value.item() if hasattr(value, "item") else value)
    if math.prod(value.shape) != 1:
        raise ValueError(f"expected one number, got a tensor of shape {tuple(value.shape)}")
    return None
