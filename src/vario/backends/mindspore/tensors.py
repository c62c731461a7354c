"""Find tensors in the inputs and outputs of a cell, and read them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import mindspore
import numpy.typing as npt
from mindspore import Parameter, Tensor
from mindspore.graph.api import _no_grad

MAX_DEPTH = 6
"""Outputs nested deeper than this are caches and the like, not activations."""


def leaves(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield all tensors in nested tuples, lists and dicts, each with its dotted path below `path`."""
    if isinstance(value, Tensor):
        yield path, value
    elif depth >= MAX_DEPTH:
        return
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}", depth + 1)
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}.{index}", depth + 1)


def inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield all tensors a cell was called with: `input` for one positional argument, else `input.0`, ..."""
    yield from leaves(args[0] if len(args) == 1 else args, "input")
    for key, value in kwargs.items():
        yield from leaves(value, f"input.{key}")


def is_on_host() -> bool:
    """Whether tensors are in the memory of the host, where they can be read in place."""
    return bool(mindspore.get_context("device_target") == "CPU")


def size(tensor: Any) -> int:
    """Return the number of elements."""
    return math.prod(tensor.shape)


def is_kept(tensor: Any) -> bool:
    """Whether a tensor keeps its value while it is referenced: a parameter is changed in place."""
    return not isinstance(tensor, Parameter)


def on_host(tensor: Any) -> npt.NDArray[Any]:
    """Return the values as an array: without a copy if they are on the host; bfloat16, which NumPy lacks, as float32.

    It waits until they are computed.
    """
    if tensor.dtype == mindspore.bfloat16:
        with _no_grad():
            tensor = tensor.astype(mindspore.float32)
    array: npt.NDArray[Any] = tensor.asnumpy()
    return array


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype: `float32`."""
    return str(dtype).lower()
