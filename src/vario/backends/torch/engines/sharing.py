"""This rank's part of a tensor and which ranks have the same, read from meshes and process groups.

Nothing here communicates with another rank.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vario.core.records import Mesh, Share

_DDP = "torch.distributed.tensor.parallel.ddp"
"""The module that stores a tensor's layout beside it, if the tensor itself does not have it."""


def group_ranks(group: Any) -> tuple[int, ...]:
    """Return the ranks of a process group, in the group's order."""
    return tuple(torch.distributed.get_process_group_ranks(group))


@dataclass(frozen=True)
class Spread:
    """How a tensor is distributed over a mesh of ranks."""

    shape: tuple[int, ...]
    mesh: Any
    placements: Sequence[Any]


def spread_of(tensor: Any) -> Spread | None:
    """Return how a tensor is distributed; None if it shows no distribution.

    DDP takes no DTensors: `torch.distributed.tensor.parallel.ddp` replaces them with this rank's part, and stores the
    layout beside it.
    """
    if are_whole((tensor,)):
        return None  # the usual case: looking up a missing attribute is slow, and leaves a dict behind
    if hasattr(tensor, "placements"):
        return Spread(tuple(tensor.shape), tensor.device_mesh, tensor.placements)
    spec = getattr(tensor, "_st_info", None)
    if spec is None or getattr(spec, "tensor_meta", None) is None:
        return None
    return Spread(tuple(spec.shape), spec.mesh, spec.placements)


def are_whole(tensors: Iterable[Any]) -> bool:
    """Whether none of these can be distributed: then none has to be checked."""
    return _DDP not in sys.modules and set(map(type, tensors)) <= {torch.nn.Parameter}


def of_dtensor(tensor: Any) -> Share | None:
    """Return the share of a DTensor, or of what was made of one; None for any other tensor."""
    spread = spread_of(tensor)
    if spread is None:
        return None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = spread.mesh, spread.placements
    sizes, offsets = compute_local_shape_and_global_offset(spread.shape, mesh, placements)
    box = tuple((start, start + size) for start, size in zip(offsets, sizes, strict=True))
    ranks, here = mesh.mesh, mesh.get_coordinate()
    if here is None:
        return Share(spread.shape)
    # The ranks that differ from this one only along dimensions that replicate.
    same = ranks[tuple(slice(None) if place.is_replicate() else at for place, at in zip(placements, here, strict=True))]
    is_whole = all(not place.is_shard() for place in placements)
    return Share(spread.shape, None if is_whole else box, None, tuple(sorted(same.flatten().tolist())))


def as_held(gradient: Any, parameter: Any) -> Any:
    """Return a gradient with the placements of its parameter; None if that would need communication."""
    if not (hasattr(gradient, "placements") and hasattr(parameter, "placements")):
        return gradient
    wanted = parameter.placements
    if gradient.placements == wanted:
        return gradient
    # A rank with the whole gradient slices its own piece; partial sums and shards would need communication.
    if any(
        place != other and not place.is_replicate() for place, other in zip(gradient.placements, wanted, strict=True)
    ):
        return None
    with torch.no_grad():
        return gradient.redistribute(placements=wanted)


def mesh_of(tensors: Iterable[Any]) -> Mesh:
    """Return the largest mesh of any of these tensors: sizes and this rank's place, by dimension."""
    tensors = list(tensors)
    if are_whole(tensors):
        return {}
    spread = [found for tensor in tensors if (found := spread_of(tensor)) is not None]
    if not spread:
        return {}
    largest = max(spread, key=lambda found: int(found.mesh.mesh.numel()))
    mesh = largest.mesh
    names = mesh.mesh_dim_names or _by_what_they_do(largest.placements)
    here = mesh.get_coordinate() or [-1] * mesh.ndim
    return {name: (int(size), int(at)) for name, size, at in zip(names, mesh.mesh.shape, here, strict=True)}


def _by_what_they_do(placements: Sequence[Any]) -> list[str]:
    """Return names for the dimensions of a mesh without names: `shard`, `replicate`."""
    kinds = ["shard" if place.is_shard() else "replicate" for place in placements]
    return [kind if kinds.count(kind) == 1 else f"{kind}_{at}" for at, kind in enumerate(kinds)]


def group_mesh(name: str, group: Any) -> Mesh:
    """Return one dimension, of a process group."""
    return {name: (torch.distributed.get_world_size(group), torch.distributed.get_rank(group))}
