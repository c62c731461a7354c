"""Read very many small CPU tensors through their addresses.

Like the kernels of a GPU, numpy gets a table of addresses here: one operation copies the elements of a hundred thousand
tensors, for which torch's own concatenation takes longer than the training step.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Places = npt.NDArray[np.int64]
"""Addresses of single elements, in units of their size."""

LEAST_TENSORS = 256
"""With fewer tensors torch concatenates them."""
MOST_ELEMENTS = 64
"""Average elements per tensor up to which listing the address of each is faster than concatenating tensors."""

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
REAL = frozenset({torch.float32, torch.bfloat16, torch.float16, torch.float64})
_is_cpu, _dtype, _layout, _is_nested = (attrgetter(name) for name in ("is_cpu", "dtype", "layout", "is_nested"))
_STRIDED = frozenset({torch.strided})


class _Memory:
    """A range of this process's memory, through numpy's array interface."""

    def __init__(self, address: int, num_elements: int, size: int) -> None:
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (num_elements,),
            "typestr": f"<u{size}",
            "version": 3,
        }


def has_plain_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor is real numbers without gaps, at the address that torch names, and not empty."""
    return (
        type(tensor) in PLAIN
        and tensor.dtype in REAL
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and tensor.numel() > 0
        and torch._C._functorch.peek_interpreter_stack() is None
        # A runtime that frees storages leaves tensors whose addresses are invalid.
        and (tensor.data_ptr() if not tensor.storage_offset() else tensor.untyped_storage().nbytes()) > 0
    )


def have_plain_memory(tensors: Sequence[torch.Tensor]) -> bool:
    """`has_plain_memory` for tensors that `are_plain` and not empty; no Python code runs per tensor."""
    if not all(map(torch.Tensor.is_contiguous, tensors)) or any(map(torch.Tensor.is_neg, tensors)):
        return False
    return torch._C._functorch.peek_interpreter_stack() is None and are_allocated(tensors)


def are_allocated(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether no tensor, none of them empty, has lost its memory: a runtime may have freed it."""
    if not all(map(torch.Tensor.data_ptr, tensors)):
        return False
    has_offsets = any(map(torch.Tensor.storage_offset, tensors))
    return not has_offsets or all(map(torch.UntypedStorage.nbytes, map(torch.Tensor.untyped_storage, tensors)))


def are_plain(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all are dense real numbers on the CPU; no Python code runs per tensor."""
    return (
        PLAIN.issuperset(map(type, tensors))
        and REAL.issuperset(map(_dtype, tensors))
        and all(map(_is_cpu, tensors))
        and _STRIDED.issuperset(map(_layout, tensors))
        and not any(map(_is_nested, tensors))
    )


def places_of(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Places | None:
    """Return the addresses of the elements of plain tensors of one dtype; None if torch should concatenate them."""
    if len(tensors) < LEAST_TENSORS or sum(sizes) > MOST_ELEMENTS * len(tensors):
        return None
    if not all(map(torch.Tensor.is_contiguous, tensors)) or any(map(torch.Tensor.is_neg, tensors)):
        return None
    first = first_places(tensors)
    if first is None:
        return None
    counts = np.array(sizes, np.int64)
    if (counts == counts[0]).all():
        return (first[:, None] + np.arange(counts[0])).reshape(-1)
    ends = np.cumsum(counts)
    places: Places = np.repeat(first - (ends - counts), counts)
    places += np.arange(len(places))
    return places


def first_places(tensors: Sequence[torch.Tensor]) -> Places | None:
    """Return the addresses of tensors of one dtype; None if one is not aligned, or has no memory."""
    # A runtime that frees storages leaves tensors whose addresses are invalid.
    if not all(map(torch.UntypedStorage.nbytes, map(torch.Tensor.untyped_storage, tensors))):
        return None
    addresses = np.fromiter(map(torch.Tensor.data_ptr, tensors), np.int64, len(tensors))
    size = tensors[0].dtype.itemsize
    return None if (addresses % size).any() else addresses // size


def read(places: Places, dtype: torch.dtype) -> torch.Tensor:
    """Return a copy of the elements at these addresses. The caller keeps their tensors alive."""
    memory, inside = around(places, dtype)
    return torch.from_numpy(memory[inside]).view(dtype)


def around(places: Places, dtype: torch.dtype) -> tuple[npt.NDArray[Any], Places]:
    """Return the memory from the first of these addresses to the last, as bits, and where they are in it.

    It may be read as long as the tensors there are alive.
    """
    first, last = int(places.min()), int(places.max())
    size = dtype.itemsize
    return np.asarray(_Memory(first * size, last - first + 1, size)), places - first
