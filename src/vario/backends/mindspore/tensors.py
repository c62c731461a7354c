"""Read tensors of cells."""

from __future__ import annotations

import math
from typing import Any

import mindspore
import numpy.typing as npt
from mindspore import Parameter
from mindspore.graph.api import _no_grad


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
