"""Largest singular values of weight matrices, iterated from step to step."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vario.backends.torch.reduce.tensors import aside, local_part

log = logging.getLogger("vario")

_COLD_STEPS = 64
"""Products with W and its transpose for a new matrix: enough for a random one, whose spectrum is flat."""
_WARM_STEPS = 16
"""The same if a singular vector is known from an earlier step."""
_FRESH_EVERY = 16
"""One measurement in this many uses the steps of a first one, in case a matrix was replaced meanwhile."""
_NOISE = 0.03
"""How much of a warm start is random: a start orthogonal to the new top direction would never find it."""
_SQUARINGS = 24
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex128, torch.complex64)
_ELEMENTS_AT_ONCE = 1 << 26
"""Larger 16-bit matrices are converted to float32 block by block, again for each product."""


@dataclass(frozen=True)
class _Known:
    shape: torch.Size
    direction: torch.Tensor
    num_measured: int


class SpectralNorms:
    """The largest singular value of each matrix, by Lanczos iteration that starts from its last vector.

    Every result is the length of W v for a unit vector v, hence never too large except for rounding. Nothing waits for
    the device, and no random numbers come from the training's own generators.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._told_of_shards = False

    def measure(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """Return the norm of one matrix, a float32 scalar on its device; not finite if the matrix is not."""
        with aside(weight.device):
            weight = weight.detach()
            if weight.numel() == 0:
                return torch.zeros((), device=weight.device)
            known = self._known.get(name)
            if known is not None and (known.shape != weight.shape or known.direction.device != weight.device):
                known = None
            num_measured = known.num_measured if known is not None else 0
            # Vectors of the shorter side are kept.
            matrix = _Matrix(weight if weight.shape[0] >= weight.shape[1] else weight.T)
            start = _noise(matrix, seed=num_measured)
            steps = _COLD_STEPS
            if known is not None:
                is_fresh = num_measured % _FRESH_EVERY == 0
                steps = _COLD_STEPS if is_fresh else _WARM_STEPS
                start = known.direction + start * (1.0 if is_fresh else _NOISE)
            norm, direction = _lanczos(matrix, start, min(steps, matrix.num_columns))
            # A NaN must not start the next measurement.
            good = torch.where(norm.isfinite(), direction, known.direction if known is not None else start)
            self._known[name] = _Known(weight.shape, good, num_measured + 1)
            return norm.float()

    def forget(self) -> None:
        """Start over for every matrix."""
        self._known.clear()

    def matrices(self, modules: Mapping[str, torch.nn.Module]) -> dict[str, torch.Tensor]:
        """Return the two-dimensional weight of each module that has one as a whole."""
        found: dict[str, torch.Tensor] = {}
        for name, module in modules.items():
            tensor = _matrix_of(module)
            whole = None if tensor is None else _whole(tensor)
            if whole is not None:
                found[name] = whole
            elif not self._told_of_shards and (tensor is not None or isinstance(module, torch.nn.Linear)):
                self._told_of_shards = True
                log.warning(
                    "spectrum of '%s' is not recorded: this rank does not have its weight as one whole matrix. "
                    "Further cases are not reported.",
                    name,
                )
        return found


def stable_rank(weight: torch.Tensor, spectral_norm: torch.Tensor) -> torch.Tensor:
    """Return the sum of squared singular values over the largest one squared, a float32 scalar; 0 for zeros."""
    with aside(weight.device):
        weight = weight.detach()
        dtype = _working_dtype(weight)
        unit = torch.where(spectral_norm == 0, torch.ones_like(spectral_norm), spectral_norm)
        # Divided first, block by block: squares of huge or tiny weights would leave the range of float32.
        blocks = weight.split(max(1, _ELEMENTS_AT_ONCE // 16 // max(1, weight.shape[1])))
        norms = [torch.linalg.vector_norm(block.to(dtype) / unit, dim=1) for block in blocks]
        return torch.square(torch.linalg.vector_norm(torch.cat(norms).to(_precise(norms[0])))).float()


def _matrix_of(module: torch.nn.Module) -> torch.Tensor | None:
    """Return a module's two-dimensional `weight` or `wg` as stored; None for an embedding, whose rows are looked up."""
    is_embedding = isinstance(module, torch.nn.Embedding)
    if is_embedding or hasattr(module, "num_embeddings") or hasattr(module, "vocab_start_index"):
        return None
    for name in ("weight", "wg"):
        # Not by getattr: a parametrized weight is computed at every access, and that may change the module's state.
        tensor = module._parameters.get(name, vars(module).get(name))
        if isinstance(tensor, torch.Tensor) and tensor.ndim == 2 and tensor.dtype in _DTYPES:
            return tensor
    return None


def _whole(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the numbers of a matrix this rank has as a whole; None for a shard, whose singular values mean nothing."""
    placements = getattr(tensor, "placements", ())
    return local_part(tensor) if all(placement.is_replicate() for placement in placements) else None


class _Matrix:
    """Products with a matrix of any float type, scaled so that its largest element is 1: squares stay in range."""

    def __init__(self, tall: torch.Tensor) -> None:
        self.num_rows, self.num_columns = tall.shape
        self.device = tall.device
        self.dtype = _working_dtype(tall)
        if tall.numel() <= _ELEMENTS_AT_ONCE or tall.dtype is self.dtype:
            self._blocks = [tall.to(self.dtype)]
        else:
            self._blocks = list(tall.split(max(1, _ELEMENTS_AT_ONCE // self.num_columns)))
        peak = torch.stack([torch.linalg.vector_norm(block.to(self.dtype), torch.inf) for block in self._blocks]).amax()
        self.scale = torch.where(peak >= torch.finfo(self.dtype).tiny, peak, torch.ones_like(peak))

    def times(self, vector: torch.Tensor) -> torch.Tensor:
        """Return W v."""
        vector = vector / self.scale
        return torch.cat([block.to(self.dtype) @ vector for block in self._blocks])

    def transposed_times(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the (conjugate) transpose of W times a vector."""
        parts = (vector / self.scale).split([len(block) for block in self._blocks])
        products = [block.to(self.dtype).mH @ part for block, part in zip(self._blocks, parts, strict=True)]
        return torch.stack(products).sum(0) if len(products) > 1 else products[0]


def _lanczos(matrix: _Matrix, start: torch.Tensor, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest singular value in the Krylov space of a vector, and its unit right singular vector."""
    basis = torch.zeros((steps, matrix.num_columns), dtype=matrix.dtype, device=matrix.device)
    images = torch.zeros((steps, matrix.num_rows), dtype=matrix.dtype, device=matrix.device)
    vector = start / torch.linalg.vector_norm(start)
    largest = torch.zeros((), dtype=matrix.dtype.to_real(), device=matrix.device)
    for step in range(steps):
        basis[step] = vector
        images[step] = matrix.times(vector)
        if step + 1 == steps:
            break
        vector = matrix.transposed_times(images[step])
        largest = torch.maximum(largest, torch.linalg.vector_norm(vector))
        known = basis[: step + 1]
        for _ in range(2):  # a single pass leaves rounding errors
            vector = torch.addmv(vector, known.T, known.conj() @ vector, alpha=-1)
        length = torch.linalg.vector_norm(vector)
        # The Krylov space is exhausted when only rounding is left: zeros add nothing, noise would.
        vector = torch.where(length > 1e-6 * largest, vector / length, 0.0)
    weights = _top_eigenvector(images).to(matrix.dtype)
    direction, image = basis.T @ weights, images.T @ weights
    length = torch.linalg.vector_norm(direction)
    return torch.linalg.vector_norm(image) / length * matrix.scale, direction / length


def _top_eigenvector(images: torch.Tensor) -> torch.Tensor:
    """Return that of the small matrix of inner products, by repeated squaring: eigenvalue solvers sync the device."""
    images = images.to(_precise(images))
    power = images.conj() @ images.T
    for squaring in range(_SQUARINGS):
        if squaring % 4 == 0:
            trace = power.trace()
            power = power / torch.where(trace == 0, torch.ones_like(trace), trace)
        power = power @ power
    # All columns are multiples of the eigenvector by now; the one with the largest diagonal element is the longest.
    column = power.index_select(1, power.diagonal().real.argmax().unsqueeze(0)).squeeze(1)
    length = torch.linalg.vector_norm(column)
    uniform = torch.ones_like(column)
    return torch.where(length == 0, uniform, column / length)


def _noise(matrix: _Matrix, seed: int) -> torch.Tensor:
    generator = torch.Generator(device=matrix.device).manual_seed(seed)
    noise = torch.randn(matrix.num_columns, generator=generator, dtype=matrix.dtype, device=matrix.device)
    unit: torch.Tensor = noise / torch.linalg.vector_norm(noise)
    return unit


def _working_dtype(matrix: torch.Tensor) -> torch.dtype:
    """Return the dtype for products with a matrix."""
    if matrix.is_complex() or matrix.dtype is torch.float64:
        return matrix.dtype
    return torch.float32


def _precise(tensor: torch.Tensor) -> torch.dtype:
    """Return float64 if it exists: float32 products may be rounded to TF32 if the user allows it."""
    dtype = torch.float64 if tensor.device.type in ("cpu", "cuda") else torch.float32
    return dtype.to_complex() if tensor.is_complex() else dtype
