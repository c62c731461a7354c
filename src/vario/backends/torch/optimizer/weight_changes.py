"""Whether weights have changed, where no optimizer tells of its updates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from vario.backends.torch.reduce.tensors import local_part

_MAX_SAMPLED = 16


class WeightChanges:
    """Compares parameters with what they were at the last look."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._versions = self._look()
        self._sample: list[Any] | None = None
        self._shows_in_versions = False

    def note(self) -> None:
        """Look at them as they are now."""
        self._versions = self._look()
        if not self._shows_in_versions:
            self._sample = self._read()

    def changed(self) -> bool:
        """Whether any has changed since the last look, which this one then is."""
        versions, before = self._look(), self._versions
        self._versions = versions
        if versions != before:
            self._shows_in_versions = True
            return True
        if self._shows_in_versions:
            return False
        # `parameter.data -= ...` leaves the version as it is. Reading a sample waits for the device, which only loops
        # without any optimizer and with such updates have to pay for.
        sample, last = self._read(), self._sample
        self._sample = sample
        return last is not None and sample is not None and sample != last

    def _look(self) -> list[int]:
        return [parameter._version for parameter in self._parameters]

    @torch.no_grad()
    def _read(self) -> list[Any] | None:
        """A few elements of the first parameters; None while a CUDA graph is captured, which allows no reading."""
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return None
        parts = (local_part(parameter) for parameter in self._parameters)
        dense = [part for part in parts if part is not None and part.layout is torch.strided and part.numel()]
        return [part.reshape(-1)[:4].tolist() for part in dense[:_MAX_SAMPLED]]
