"""Everything this rank keeps for a parameter, and copies of it on the host."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from vario.backends.torch.engines import optimizers
from vario.backends.torch.engines.base import Engine
from vario.backends.torch.reduce.tensors import aside, local_part
from vario.core.records import HostCopy

_IN_NUMPY = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.complex64, torch.complex128, torch.bool, torch.uint8}
    | {torch.int8, torch.int16, torch.int32, torch.int64}
)


def kept_of(engine: Engine, updating: Sequence[Any], names: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what this rank has for each parameter: `weight`, `gradient` if there is one, and the optimizers' state."""
    wanted = set(names)
    state: dict[str, list[tuple[str, torch.Tensor]]] = {}
    for optimizer in updating:
        for piece in engine.pieces(optimizer):
            if piece.name in wanted:
                state.setdefault(piece.name, []).extend(optimizers.state_tensors(optimizer, piece))
    for name in names:
        yield f"{name}:weight", engine.weight(name)
        gradient = engine.gradient(name)
        if gradient is not None:
            yield f"{name}:gradient", gradient
        yield from ((f"{name}:{key}", tensor) for key, tensor in state.get(name, ()))


def host_copy(tensor: torch.Tensor, most_bytes: int, sample_bytes: int) -> HostCopy | None:
    """Return a copy on the host: whole if it takes at most `most_bytes`, else every n-th element in `sample_bytes`.

    None if the tensor cannot be read. Dtypes that numpy lacks become float32.
    """
    local = local_part(tensor)
    if local is None or local.layout is not torch.strided:
        return None
    dtype = local.dtype if local.dtype in _IN_NUMPY else torch.float32
    num_bytes = local.numel() * dtype.itemsize
    stride = 1 if num_bytes <= most_bytes else math.ceil(num_bytes / max(sample_bytes, dtype.itemsize))
    with aside(local.device):
        taken = local if stride == 1 else local.reshape(-1)[::stride]
        # Always a copy: the weights keep changing while it is written.
        array = taken.resolve_conj().resolve_neg().to("cpu", dtype, copy=True).contiguous().numpy()
    return HostCopy(array, str(tensor.dtype).removeprefix("torch."), tuple(local.shape), stride)
