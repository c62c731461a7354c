"""One number for all gradients of a step: cheap enough for every step, and enough to detect a jump."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter

import torch

from vario.backends.torch.reduce.small_tensors import blocks, end_to_end, small_sizes
from vario.backends.torch.reduce.tensors import flat, is_inside_transform, local_part, unseen

_is_cpu, _dtype = attrgetter("is_cpu"), attrgetter("dtype")


def norm_of_all(tensors: Sequence[torch.Tensor]) -> float | None:
    """Return the norm of dense tensors on the host, all together; None if one of them is elsewhere."""
    if is_inside_transform() or not all(map(_is_cpu, tensors)):
        return None
    with torch.no_grad(), unseen():
        if (sizes := small_sizes(tensors)) is not None and len(set(map(_dtype, tensors))) == 1:
            # Concatenating small tensors takes less time than one operation for each.
            elements = end_to_end(tensors, sizes)
            squares = _squares(elements)
            blocks.give_back(elements)
            return math.sqrt(squares)
        parts = [part for tensor in tensors if (part := local_part(tensor)) is not None]
        if any(part.layout is not torch.strided for part in parts):
            return None
        return math.sqrt(sum(_squares(flat(part)) for part in parts))


def _squares(elements: torch.Tensor) -> float:
    if elements.is_complex():
        elements = torch.view_as_real(elements.resolve_conj()).reshape(-1)
    if elements.dtype is torch.float32 or elements.dtype is torch.float64:
        return float(torch.dot(elements, elements))
    return float(torch.linalg.vector_norm(elements, dtype=torch.float32)) ** 2
