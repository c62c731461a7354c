"""Tensors that were seen before: under another name, or as the gradient of another module's output."""

from __future__ import annotations

import weakref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from vario.backends.torch.reduce.tensors import version_of


class SeenTensor:
    """One tensor at one version, under every name it was seen by: it is reduced once."""

    __slots__ = ("gradient_hooked", "is_steady", "micro_step", "of_only_user", "reference", "row", "targets", "version")

    def __init__(self, tensor: torch.Tensor, micro_step: int | None, version: int | None = None) -> None:
        self.micro_step = micro_step
        """The forward pass it belongs to; none for a leaf, which all passes may use."""
        self.reference = weakref.ref(tensor)
        self.version = version_of(tensor) if version is None else version
        self.row: int | None = None
        self.gradient_hooked = False
        self.is_steady = False
        """Whether it keeps its values until the end of the pass."""
        self.of_only_user: GradientRow | None = None
        """The gradient that came back through one module that uses this tensor."""
        self.targets: tuple[str, ...] = ()

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Whether this is the same tensor, unchanged: an address alone may be reused."""
        return self.reference() is tensor and 0 <= self.version == version_of(tensor)


class GradientRow:
    """The row of a gradient, while that gradient is unchanged in memory."""

    def __init__(self, gradient: torch.Tensor, row: int) -> None:
        self.row = row
        self._storage = StorageWeakRef(gradient.untyped_storage())
        self._place = gradient.data_ptr(), gradient.shape, gradient.stride(), gradient._version

    def is_of(self, gradient: torch.Tensor) -> bool:
        """Whether this is the same gradient: memory that was freed meanwhile may contain another one."""
        if self._storage.expired() or not has_place(gradient):
            return False
        return self._place == (gradient.data_ptr(), gradient.shape, gradient.stride(), gradient._version)


def has_place(gradient: torch.Tensor) -> bool:
    """Whether a gradient is a plain block of numbers in its own memory."""
    return type(gradient) is torch.Tensor and gradient.layout is torch.strided and not gradient.is_nested
