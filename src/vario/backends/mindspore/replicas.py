"""Data parallelism: what all ranks have alike, and which of them records it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import mindspore
import numpy as np
import numpy.typing as npt
from mindspore import ops
from mindspore.graph.api import _no_grad

from vario.backends.mindspore.targets import Targets
from vario.backends.mindspore.tensors import is_on_host, on_host
from vario.backends.protocols.observing import NamedTensors
from vario.core.records import Mesh

_SHARING = ("data_parallel", "hybrid_parallel")
_MIX = np.uint32(0x9E3779B1)
"""Odd, so that no difference is lost, with mixed bits, so that a change of any bit shows in the upper 24."""


class SharingRanks:
    """The ranks that train the same parameters."""

    def __init__(self, targets: Targets, rank: int, world_size: int) -> None:
        self._targets = targets
        self._rank, self._world_size = rank, world_size
        is_shared = world_size > 1 and str(mindspore.get_auto_parallel_context("parallel_mode")) in _SHARING
        self.ranks = tuple(range(world_size)) if is_shared else ()
        self.is_left_to_others = False

    @property
    def mesh(self) -> Mesh:
        """The one dimension of data parallelism, if there is one."""
        return {"data": (self._world_size, self._rank)} if self.ranks else {}

    @property
    def replicated(self) -> list[str]:
        """The chosen parameters that other ranks have as well."""
        return list(self._targets.names) if self.ranks else []

    def leave_to_others(self, rank: int, recording: Collection[int]) -> None:
        """Set which ranks record (empty: all): the first of them records what all have."""
        writers = [other for other in self.ranks if not recording or other in recording]
        self.is_left_to_others = bool(writers) and rank in writers and writers[0] != rank

    def checksums(self, what: str, named: NamedTensors) -> NamedTensors:
        """Return names (`weight:gradient`) and checksums of tensors that other ranks have as well."""
        names, tensors = named
        if not self.ranks:
            return [], []
        return [f"{name}:{what}" for name in names], [_checksum(tensor) for tensor in tensors]


def _checksum(tensor: Any) -> Any:
    """Return a number that is equal on two ranks if their tensors are equal, and hardly ever otherwise."""
    if is_on_host():
        return mindspore.Tensor(_checksum_of(on_host(tensor)))
    with _no_grad():
        # The same kernel on the same numbers: equal on all ranks, to the last bit.
        return ops.reduce_sum(ops.cast(tensor, mindspore.float32))


def _checksum_of(array: npt.NDArray[Any]) -> np.float32:
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    whole = raw.size // 4 * 4
    # Sums of integers wrap around: unlike sums of floats they do not depend on the order of addition.
    total = raw[:whole].view(np.uint32).sum(dtype=np.uint32) + raw[whole:].sum(dtype=np.uint32)
    with np.errstate(over="ignore"):
        return np.float32((np.uint32(total) * _MIX) >> np.uint32(8))
