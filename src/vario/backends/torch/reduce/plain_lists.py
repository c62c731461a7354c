"""Lists of tensors on devices: whether they are plain blocks of numbers, and which belong together."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import torch

from vario.backends.torch.reduce.memory_reads import PLAIN, REAL

_dtype, _layout, _is_nested = attrgetter("dtype"), attrgetter("layout"), attrgetter("is_nested")
_is_strided = torch.strided.__eq__


class Group(NamedTuple):
    """Tensors of one device and dtype: their places in the list, and their sizes."""

    members: Sequence[int]
    sizes: tuple[int, ...]


def are_plain(tensors: list[torch.Tensor]) -> bool:
    """Whether all are blocks of real numbers without gaps on one device."""
    if not PLAIN.issuperset(map(type, tensors)) or not REAL.issuperset(map(_dtype, tensors)):
        return False
    if len(set(map(torch.Tensor.get_device, tensors))) > 1 or any(map(_is_nested, tensors)):
        return False
    return all(map(_is_strided, map(_layout, tensors))) and all(map(torch.Tensor.is_contiguous, tensors))


def groups_of(tensors: list[torch.Tensor]) -> list[Group]:
    """Return which tensors have the same device and dtype."""
    kinds = list(zip(map(torch.Tensor.get_device, tensors), map(_dtype, tensors), strict=True))
    members: dict[tuple[int, torch.dtype], list[int]] = {}
    for at, kind in enumerate(kinds):
        members.setdefault(kind, []).append(at)
    return [Group(ats, tuple([tensors[at].numel() for at in ats])) for ats in members.values()]
