"""A number for each row of a batch: the same for the same row, and hardly ever for two that differ.

A row's elements, as whole numbers, are each multiplied by a number of its place and added up, all modulo 2^64; the host
mixes the sums. Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vario.backends.base import RowHashes
from vario.backends.torch.reduce.async_copy import fetch_later
from vario.backends.torch.reduce.tensors import leaves, local_part, unseen

MAX_ROWS = 1024
MAX_ELEMENTS = 4096
_SAME_FOR_MANY = ("mask", "position", "token_type")
"""Inputs whose rows are alike though the batches are not, by parts of their names."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_factors: dict[tuple[torch.device, int], torch.Tensor] = {}


@torch.no_grad()
def row_hashes(inputs: Any) -> Callable[[], RowHashes] | None:
    """Begin to hash the rows of the largest tensor of whole numbers in a nest, or else of the largest of floats."""
    found = [local_part(tensor) for _, tensor in row_candidates(inputs)]
    tensors = [tensor for tensor in found if tensor is not None and _has_rows(tensor)]
    whole = [tensor for tensor in tensors if not tensor.is_floating_point()]
    size = max((tensor.numel() for tensor in whole or tensors), default=0)
    largest = [tensor for tensor in whole or tensors if tensor.numel() == size]
    if not largest:
        return None
    # Several of one size (tokens and labels) are rows of one batch where they have as many rows.
    alike = [tensor for tensor in largest if len(tensor) == len(largest[0]) and tensor.device == largest[0].device]
    with unseen():
        fetches = [fetch_later(_sums(tensor)) for tensor in alike]

    def fetch() -> RowHashes:
        hashes = np.zeros(1, np.uint64)
        for wait in fetches:
            hashes = _mixed(hashes + wait().view(np.uint64))
        return hashes

    return fetch


def row_candidates(inputs: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a nest that may tell one batch from another, each with its path."""
    for path, tensor in leaves(inputs, ""):
        is_number = not tensor.is_complex() and tensor.dtype is not torch.bool
        if is_number and not any(word in path for word in _SAME_FOR_MANY):
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
        rows = rows.to(torch.int64)  # what has few operations of its own
    return (rows * _places(tensor.device, rows.shape[1])).sum(dim=1)


def _places(device: torch.device, count: int) -> torch.Tensor:
    """An odd number for each place in a row."""
    found = _factors.get((device, count))
    if found is None:
        if len(_factors) > 64:  # rows of ever other lengths
            _factors.clear()
        numbers = _mixed(np.arange(1, count + 1, dtype=np.uint64)) | np.uint64(1)
        factors = torch.from_numpy(numbers.view(np.int64))
        if device.type == "cuda":
            # Pinned memory comes from torch's caching allocator, which keeps it until this copy has happened.
            factors = factors.pin_memory()
        found = _factors[device, count] = factors.to(device, non_blocking=True)
    return found


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Numbers whose every bit depends on every bit of what they were (the finalizer of splitmix64)."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _has_rows(tensor: torch.Tensor) -> bool:
    return bool(tensor.dim() and tensor.numel() and tensor.layout is torch.strided)
