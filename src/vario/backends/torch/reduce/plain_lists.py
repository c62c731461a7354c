"""Lists of tensors on devices: whether they are plain blocks of numbers, and which belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass
class PlainList:
    """A list of plain blocks of numbers on one device, where its tensors are now."""

    addresses: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    sizes: tuple[int, ...]
    groups: list[Group]

    @classmethod
    def of(cls, tensors: list[torch.Tensor], addresses: tuple[int, ...], before: PlainList | None) -> PlainList | None:
        """Return the list of these tensors, which may replace others; None if one is no plain block."""
        dtypes, sizes = tuple(map(_dtype, tensors)), tuple(map(torch.Tensor.numel, tensors))
        is_alike = before is not None and before.dtypes == dtypes and before.sizes == sizes
        if not (_are_blocks(tensors) if is_alike else are_plain(tensors)):
            return None
        groups = before.groups if before is not None and is_alike else groups_of(tensors)
        return cls(addresses, dtypes, sizes, groups)


def are_plain(tensors: list[torch.Tensor]) -> bool:
    """Whether all are blocks of real numbers without gaps on one device."""
    if not REAL.issuperset(map(_dtype, tensors)) or any(map(_is_nested, tensors)):
        return False
    return all(map(_is_strided, map(_layout, tensors))) and _are_blocks(tensors)


def _are_blocks(tensors: list[torch.Tensor]) -> bool:
    """Whether this is so of tensors like those before: the same dtypes and sizes."""
    if not PLAIN.issuperset(map(type, tensors)) or len(set(map(torch.Tensor.get_device, tensors))) > 1:
        return False
    return all(map(torch.Tensor.is_contiguous, tensors))


def groups_of(tensors: list[torch.Tensor]) -> list[Group]:
    """Return which tensors have the same device and dtype."""
    kinds = list(zip(map(torch.Tensor.get_device, tensors), map(_dtype, tensors), strict=True))
    members: dict[tuple[int, torch.dtype], list[int]] = {}
    for at, kind in enumerate(kinds):
        members.setdefault(kind, []).append(at)
    return [Group(ats, tuple([tensors[at].numel() for at in ats])) for ats in members.values()]
