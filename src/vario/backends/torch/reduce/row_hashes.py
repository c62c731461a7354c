"""A hash of each row of a batch: equal for equal rows, and hardly ever for different ones.

Each element of a row, as an integer, is multiplied by a number for its position; the products are summed modulo 2^64,
and the host mixes the sums. Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from vario.backends.batch_rows import MAX_ELEMENTS, MAX_ROWS, SAME_FOR_MANY, mixed
from vario.backends.nested_tensors import leaves
from vario.backends.protocols.observing import RowHashes
from vario.backends.torch.reduce.async_copy import fetch_later
from vario.backends.torch.reduce.tensors import local_part, unseen

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_factors: dict[tuple[torch.device, int], torch.Tensor] = {}


@torch.no_grad()
def row_hashes(inputs: Any) -> Callable[[], RowHashes] | None:
    """Start hashing the rows of the largest integer tensor in nested inputs, or else of the largest float tensor."""
    found = [local_part(tensor) for _, tensor in row_candidates(inputs)]
    tensors = [tensor for tensor in found if tensor is not None and _has_rows(tensor)]
    # One number a row, such as a class, does not tell rows apart.
    whole = [tensor for tensor in tensors if not tensor.is_floating_point() and len(tensor) < tensor.numel()]
    size = max((tensor.numel() for tensor in whole or tensors), default=0)
    largest = [tensor for tensor in whole or tensors if tensor.numel() == size]
    if not largest:
        return None
    # Several of one size (tokens and labels) are rows of one batch if they have as many rows.
    alike = [tensor for tensor in largest if len(tensor) == len(largest[0]) and tensor.device == largest[0].device]
    with unseen():
        fetches = [fetch_later(_sums(tensor)) for tensor in alike]

    def fetch() -> RowHashes:
        hashes = np.zeros(1, np.uint64)
        for wait in fetches:
            hashes = mixed(hashes + wait().view(np.uint64))
        return hashes

    return fetch


def row_candidates(inputs: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in nested inputs that may distinguish batches, each with its path."""
    for path, tensor in leaves(torch.Tensor, inputs, ""):
        is_number = not tensor.is_complex() and tensor.dtype is not torch.bool
        if is_number and not any(word in path for word in SAME_FOR_MANY):
            yield path, tensor


def _sums(tensor: torch.Tensor) -> torch.Tensor:
    rows = tensor if len(tensor) <= MAX_ROWS else tensor[:: -(-len(tensor) // MAX_ROWS)]
    rows = rows.reshape(len(rows), -1)
    if rows.shape[1] > MAX_ELEMENTS:
        rows = rows[:, :: -(-rows.shape[1] // MAX_ELEMENTS)]
    if rows.is_floating_point():
        rows = rows.contiguous().view(_BITS[rows.element_size()])
        if rows.dtype is torch.int64:
            # Whatever is multiplied, a sign in the highest bit stays there, and two of them cancel out.
            rows = rows ^ (rows >> 32)
    elif rows.dtype not in _BITS.values():
        rows = rows.to(torch.int64)  # few operations support the original dtype
    return (rows * _places(tensor.device, rows.shape[1])).sum(dim=1)


def _places(device: torch.device, count: int) -> torch.Tensor:
    """Return an odd number for each position in a row."""
    found = _factors.get((device, count))
    if found is None:
        if len(_factors) > 64:  # rows of ever-changing lengths
            _factors.clear()
        numbers = mixed(np.arange(1, count + 1, dtype=np.uint64)) | np.uint64(1)
        factors = torch.from_numpy(numbers.view(np.int64))
        if device.type == "cuda":
            # Pinned memory comes from torch's caching allocator, which keeps it until this copy has happened.
            factors = factors.pin_memory()
        found = _factors[device, count] = factors.to(device, non_blocking=True)
    return found


def _has_rows(tensor: torch.Tensor) -> bool:
    return bool(tensor.dim() and tensor.numel() and tensor.layout is torch.strided)
