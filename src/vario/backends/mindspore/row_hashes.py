"""A hash of each row of a batch: equal for equal rows, and hardly ever for different ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from mindspore import Tensor

from vario.backends.batch_rows import MAX_ELEMENTS, MAX_ROWS, SAME_FOR_MANY, mixed
from vario.backends.mindspore.tensors import on_host, size
from vario.backends.nested_tensors import leaves
from vario.backends.protocols.observing import RowHashes

_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def row_hashes(inputs: Any) -> Callable[[], RowHashes] | None:
    """Return a call that hashes the rows of the largest integer tensor in nested inputs, or of the largest of floats.

    The inputs are kept until then: batches are not changed in place, and the writer reads them.
    """
    found = [
        tensor
        for path, tensor in leaves(Tensor, inputs, "")
        if tensor.shape and size(tensor) and not any(word in path for word in SAME_FOR_MANY)
    ]
    # One number a row, such as a class, does not tell rows apart.
    whole = [tensor for tensor in found if "int" in str(tensor.dtype).lower() and len(tensor.shape) > 1]
    most = max((size(tensor) for tensor in whole or found), default=0)
    largest = [tensor for tensor in whole or found if size(tensor) == most]
    if not largest:
        return None
    alike = [tensor for tensor in largest if tensor.shape[0] == largest[0].shape[0]]

    def fetch() -> RowHashes:
        hashes = np.zeros(1, np.uint64)
        for tensor in alike:
            hashes = mixed(hashes + _sums(on_host(tensor)))
        return hashes

    return fetch


def _sums(array: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    rows = array if len(array) <= MAX_ROWS else array[:: -(-len(array) // MAX_ROWS)]
    rows = rows.reshape(len(rows), -1)
    if rows.shape[1] > MAX_ELEMENTS:
        rows = rows[:, :: -(-rows.shape[1] // MAX_ELEMENTS)]
    bits = np.ascontiguousarray(rows).view(_BITS[rows.dtype.itemsize]).astype(np.uint64)
    if rows.dtype.itemsize == 8:
        # Whatever is multiplied, a sign in the highest bit stays there, and two of them cancel out.
        bits ^= bits >> np.uint64(32)
    places = mixed(np.arange(1, rows.shape[1] + 1, dtype=np.uint64)) | np.uint64(1)
    sums: npt.NDArray[np.uint64] = (bits * places).sum(axis=1, dtype=np.uint64)
    return sums
