"""Lists of tensors on devices: whether they are plain blocks of numbers, and which belong together."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch

from vario.backends.torch.reduce.memory_reads import PLAIN, REAL

_dtype, _layout, _is_nested = attrgetter("dtype"), attrgetter("layout"), attrgetter("is_nested")
_is_strided = torch.strided.__eq__


def are_plain(tensors: list[torch.Tensor]) -> bool:
    """Whether all are blocks of real numbers without gaps on one device."""
    if not PLAIN.issuperset(map(type, tensors)) or not REAL.issuperset(map(_dtype, tensors)):
        return False
    if len(set(map(torch.Tensor.get_device, tensors))) > 1 or any(map(_is_nested, tensors)):
        return False
    return all(map(_is_strided, map(_layout, tensors))) and all(map(torch.Tensor.is_contiguous, tensors))


def groups_of(made_in: list[Any], tensors: list[torch.Tensor]) -> list[list[int]]:
    """Return which tensors have the same device and dtype."""
    kinds = list(zip(map(id, made_in), map(_dtype, tensors), strict=True))
    if len(set(kinds)) == 1:
        return [[]]
    groups: dict[Any, list[int]] = {}
    for at, kind in enumerate(kinds):
        groups.setdefault(kind, []).append(at)
    return list(groups.values())
