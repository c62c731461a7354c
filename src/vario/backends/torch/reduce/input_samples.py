"""A few elements of each tensor that a model is called with: the same places at every step, never the whole tensor."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import torch

from vario.backends.nested_tensors import inputs as named_inputs
from vario.backends.protocols.observing import Later
from vario.backends.torch.reduce.async_copy import fetch_later
from vario.backends.torch.reduce.tensors import is_inside_transform, local_part, unseen

MOST_TENSORS, MOST_ELEMENTS = 6, 128
_NUMBERS = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_IN_NUMPY = (_NUMBERS | _INTEGERS) - {torch.bfloat16}


@torch.no_grad()
def input_samples(inputs: tuple[tuple[Any, ...], Any]) -> Sequence[tuple[str, Later]]:
    """Start reading a sample of each tensor of numbers in a model's inputs; reading it later gives what is there now.

    A tensor that is computed with gradients is what another model made, not data.
    """
    if is_inside_transform():
        return ()
    found: list[tuple[str, Later]] = []
    for name, tensor in islice(named_inputs(torch.Tensor, *inputs), MOST_TENSORS):
        if tensor.requires_grad or not (tensor.dtype in _NUMBERS or tensor.dtype in _INTEGERS):
            continue
        if type(tensor) is torch.Tensor and tensor.is_cpu and tensor.layout is torch.strided:
            if tensor.numel():
                found.append((name, _read(tensor)))
        elif (local := local_part(tensor)) is not None and local.layout is torch.strided and local.numel():
            with unseen():
                found.append((name, _read_later(local)))
    return found


def held_inputs(inputs: tuple[tuple[Any, ...], Any]) -> Callable[[], Sequence[tuple[str, int]]]:
    """Return what counts elements that are NaN or +Inf in the inputs on the host that still exist then, by name.

    Masks contain -Inf on purpose.
    """
    held = [
        (name, weakref.ref(tensor))
        for name, tensor in islice(named_inputs(torch.Tensor, *inputs), MOST_TENSORS)
        if tensor.dtype in _NUMBERS
    ]

    def count() -> Sequence[tuple[str, int]]:
        found = []
        with torch.no_grad(), unseen():
            for name, there in held:
                tensor = there()
                if type(tensor) is torch.Tensor and tensor.is_cpu and tensor.layout is torch.strided:
                    number = int((~(tensor < torch.inf)).sum())
                    found += [(name, number)] * (number > 0)
        return found

    return count


def _read(tensor: torch.Tensor) -> Later:
    if tensor.dtype not in _IN_NUMPY or not tensor.is_contiguous() or tensor.is_neg():
        with unseen():
            return _read_later(tensor)
    flat = tensor.numpy().reshape(-1)
    places = _places(len(flat))
    taken = flat.copy() if places is None else flat[places]
    return lambda: taken


def _read_later(tensor: torch.Tensor) -> Later:
    return fetch_later(_taken(tensor).clone())


def _taken(tensor: torch.Tensor) -> torch.Tensor:
    """Return every n-th element in memory order, without a copy of the others."""
    if not tensor.is_contiguous():
        tensor = tensor[tuple(slice(None, None, max(1, size // 8)) for size in tensor.shape)].flatten()
    taken = tensor.reshape(-1)[:: _stride(tensor.numel())]
    return taken.float() if taken.dtype is torch.bfloat16 else taken


def _stride(count: int) -> int:
    """Return an odd step, so that it does not meet the same column of each row."""
    return -(-count // MOST_ELEMENTS) | 1


@lru_cache(64)
def _places(count: int) -> Any:
    """Return places spread at random, but always the same: a regular grid may meet one column of every row."""
    if count <= MOST_ELEMENTS:
        return None
    return np.sort(np.random.default_rng(count).choice(count, MOST_ELEMENTS, replace=False))
