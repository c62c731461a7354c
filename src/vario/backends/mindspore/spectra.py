"""Largest singular values of weight matrices, iterated from step to step on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mindspore
import numpy as np
import numpy.typing as npt
from mindspore import Parameter, Tensor, nn

from vario.backends.mindspore.tensors import on_host
from vario.backends.protocols.observing import NamedTensors

_COLD_STEPS, _WARM_STEPS = 64, 16
"""Products with W and its transpose: for a new matrix, and if a singular vector is known from an earlier step."""
_FRESH_EVERY = 16
"""One measurement in this many uses the steps of a first one, in case a matrix was replaced meanwhile."""
_NOISE = 0.03
"""How much of a warm start is random: a start orthogonal to the new top direction would never find it."""
_MOST_PRECISE = 1 << 22
"""Larger matrices are multiplied in float32."""

Array = npt.NDArray[Any]


class SpectralNorms:
    """The largest singular value of each matrix, by Lanczos iteration that starts from its last vector."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Array, int]] = {}

    def measure(self, name: str, matrix: Any) -> tuple[float, float]:
        """Return the largest singular value of a matrix and its Frobenius norm; not finite if it is not."""
        array = on_host(matrix)
        tall = array if array.shape[0] >= array.shape[1] else array.T
        frobenius = float(np.linalg.norm(tall.astype(np.float64, copy=False)))
        if not tall.size or not np.isfinite(frobenius):
            return frobenius, frobenius
        tall = tall.astype(np.float64 if tall.size <= _MOST_PRECISE else np.float32, copy=False)
        last, num_measured = self._known.get(name, (None, 0))
        if last is not None and len(last) != tall.shape[1]:
            last, num_measured = None, 0
        noise = np.random.default_rng(num_measured).normal(size=tall.shape[1])
        is_cold = last is None or num_measured % _FRESH_EVERY == 0
        start: Array = np.asarray(noise * ((1.0 if is_cold else _NOISE) / np.linalg.norm(noise)))
        start = start if last is None else start + last
        norm, direction = _lanczos(tall, start, min(_COLD_STEPS if is_cold else _WARM_STEPS, tall.shape[1]))
        self._known[name] = direction, num_measured + 1
        return norm, frobenius

    def spectra(self, cells: Mapping[str, Any]) -> NamedTensors:
        """Return `<cell>:spectral_norm` and `<cell>:stable_rank` of each cell with a matrix."""
        names: list[str] = []
        numbers: list[Any] = []
        for name, matrix in matrices(cells).items():
            largest, frobenius = self.measure(name, matrix)
            names += [f"{name}:spectral_norm", f"{name}:stable_rank"]
            numbers += [as_number(largest), as_number((frobenius / largest) ** 2 if largest else largest)]
        return names, numbers


def matrices(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Return the two-dimensional `weight` or `wg` of each cell; none of an embedding, whose rows are looked up."""
    found = {}
    for name, cell in cells.items():
        if isinstance(cell, nn.Embedding) or hasattr(cell, "num_embeddings"):
            continue
        own = (cell._params.get(key) for key in ("weight", "wg"))
        matrix = next((one for one in own if isinstance(one, Parameter) and len(one.shape) == 2), None)
        if matrix is not None:
            found[name] = matrix
    return found


def as_number(value: float) -> Any:
    """Return a tensor without dimensions."""
    return Tensor(value, mindspore.float32)


def _lanczos(matrix: Array, start: Array, steps: int) -> tuple[float, Array]:
    """Return the largest singular value in the Krylov space of a vector, and its unit right singular vector."""
    basis, images = np.zeros((steps, matrix.shape[1])), np.zeros((steps, matrix.shape[0]))
    vector, largest = start / np.linalg.norm(start), 0.0
    for step in range(steps):
        basis[step], images[step] = vector, matrix @ vector.astype(matrix.dtype)
        vector = (matrix.T @ images[step].astype(matrix.dtype)).astype(np.float64)
        largest = max(largest, float(np.linalg.norm(vector)))
        for _ in range(2):  # a single pass leaves rounding errors
            vector = vector - basis[: step + 1].T @ (basis[: step + 1] @ vector)
        length = float(np.linalg.norm(vector))
        if length <= 1e-6 * largest:
            break  # only rounding is left
        vector = vector / length
    weights = np.linalg.eigh(images @ images.T)[1][:, -1]
    direction, image = basis.T @ weights, images.T @ weights
    length = float(np.linalg.norm(direction))
    return float(np.linalg.norm(image)) / length, direction / length
