"""Detect whether weights have changed, if no optimizer shows its updates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from vario.backends.torch.reduce.tensors import local_part

_MAX_SAMPLED = 16


class WeightChanges:
    """Compares parameters with their state at the last check."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._versions = self._look()
        self._sample: list[Any] | None = None
        self._shows_in_versions = False

    def note(self) -> None:
        """Note their current state."""
        self._versions = self._look()
        if not self._shows_in_versions:
            self._sample = self._read()

    def changed(self) -> bool:
        """Whether any has changed since the last check; this call becomes the last check."""
        versions, before = self._look(), self._versions
        self._versions = versions
        if versions != before:
            self._shows_in_versions = True
            return True
        if self._shows_in_versions:
            return False
        # `parameter.data -= ...` does not change the version. Reading a sample waits for the device, a cost only for
        # loops without any optimizer and with such updates.
        sample, last = self._read(), self._sample
        self._sample = sample
        return last is not None and sample is not None and sample != last

    def _look(self) -> list[int]:
        return [parameter._version for parameter in self._parameters]

    @torch.no_grad()
    def _read(self) -> list[Any] | None:
        """Return a few elements of the first parameters; None while a CUDA graph is captured, which forbids reading."""
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return None
        parts = (local_part(parameter) for parameter in self._parameters)
        dense = [part for part in parts if part is not None and part.layout is torch.strided and part.numel()]
        return [part.reshape(-1)[:4].tolist() for part in dense[:_MAX_SAMPLED]]
