"""One number for all gradients of a step: cheap enough for every step, and enough to detect a jump."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter

import numpy as np
import numpy.typing as npt
import torch

from vario.backends.torch.reduce import memory_reads
from vario.backends.torch.reduce.native_lists import squares
from vario.backends.torch.reduce.small_tensors import SMALL
from vario.backends.torch.reduce.tensors import flat, is_inside_transform, local_part, unseen

_is_cpu, _dtype = attrgetter("is_cpu"), attrgetter("dtype")
_EXACT = ({torch.float32}, {torch.float64})


def norm_of_all(tensors: Sequence[torch.Tensor]) -> float | None:
    """Return the norm of dense tensors on the host, all together; None if one of them is elsewhere."""
    if is_inside_transform():
        return None
    with torch.no_grad(), unseen():
        is_one_dtype = len(set(map(_dtype, tensors))) == 1
        if is_one_dtype and memory_reads.are_plain(tensors) and memory_reads.are_allocated(tensors):
            found = squares(tensors)
            return math.sqrt(_squares_of_plain(tensors) if found is None else found.sum())
        if not all(map(_is_cpu, tensors)):
            return None
        parts = [part for tensor in tensors if (part := local_part(tensor)) is not None]
        if any(part.layout is not torch.strided for part in parts):
            return None
        return math.sqrt(sum(_squares(flat(part)) for part in parts))


def norms_of_each(tensors: Sequence[torch.Tensor]) -> npt.NDArray[np.float64] | None:
    """Return the norm of each of some plain tensors of float32 or float64 on the host; None if they are not."""
    if not tensors:
        return np.zeros(0)
    if is_inside_transform() or set(map(_dtype, tensors)) not in _EXACT:
        return None
    if not memory_reads.are_plain(tensors) or not memory_reads.are_allocated(tensors):
        return None
    if (each := squares(tensors)) is not None:
        return np.sqrt(each)
    with torch.no_grad(), unseen():
        found: npt.NDArray[np.float64] = torch.stack(torch._foreach_norm(list(tensors))).double().numpy()
        return found


def _squares_of_plain(tensors: Sequence[torch.Tensor]) -> float:
    sizes = list(map(torch.Tensor.numel, tensors))
    if max(sizes) > SMALL:
        small = [tensor for tensor, size in zip(tensors, sizes, strict=True) if size <= SMALL]
        large = [flat(tensor) for tensor, size in zip(tensors, sizes, strict=True) if size > SMALL]
    else:
        small, large = list(tensors), []
    if len(small) > 1:
        # Concatenating small tensors takes less time than one operation for each.
        places = None if large else memory_reads.places_of(small, sizes)
        if places is None:
            small = [torch._C._nn.flatten_dense_tensors(small)]
        else:
            small = [memory_reads.read(places, small[0].dtype)]
    return sum([_squares(flat(tensor)) for tensor in (*small, *large)])


def _squares(elements: torch.Tensor) -> float:
    if elements.is_complex():
        elements = torch.view_as_real(elements.resolve_conj()).reshape(-1)
    if elements.dtype is torch.float32 or elements.dtype is torch.float64:
        return float(torch.dot(elements, elements))
    return float(torch.linalg.vector_norm(elements, dtype=torch.float32)) ** 2
