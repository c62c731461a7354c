"""A few thousand elements of every parameter of an optimizer, the same ones each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore
import numpy as np
import numpy.typing as npt
from mindspore import ops
from mindspore.graph.api import _no_grad

from vario.backends.element_strides import LEAST_SAMPLE, MAX_HOST_MATRIX, MAX_SAMPLE, stride_over
from vario.backends.mindspore.tensors import is_on_host, on_host, size

Read = Any
"""Elements that were read: an array on the host, or a tensor that is still on its device."""


class Samples:
    """Which elements of each tensor are read."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        most = max(LEAST_SAMPLE, min(MAX_SAMPLE, MAX_HOST_MATRIX // max(1, len(shapes))))
        sizes = [int(np.prod(shape)) for shape in shapes]
        self._strides = [
            stride_over(num_elements, shape[-1] if len(shape) > 1 else 0, most)
            for shape, num_elements in zip(shapes, sizes, strict=True)
        ]
        counts = [-(-num_elements // stride) for num_elements, stride in zip(sizes, self._strides, strict=True)]
        self._ends = np.cumsum(counts)[:-1]
        self._is_on_host = is_on_host()

    def read(self, tensors: Sequence[Any]) -> Read:
        """Return the elements of all tensors as they are now, one after the other."""
        if self._is_on_host:
            parts = [
                on_host(one).reshape(-1)[::stride].astype(np.float64)
                for one, stride in zip(tensors, self._strides, strict=True)
            ]
            return np.concatenate(parts)
        with _no_grad():
            return ops.concat(
                [
                    ops.cast(ops.reshape(one, (-1,))[::stride], mindspore.float32)
                    for one, stride in zip(tensors, self._strides, strict=True)
                    if size(one)
                ]
            )

    def split(self, read: Read) -> list[npt.NDArray[np.float64]]:
        """Return what was read, per tensor; waits for the device."""
        values = read if isinstance(read, np.ndarray) else on_host(read).astype(np.float64)
        return np.split(values, self._ends)
