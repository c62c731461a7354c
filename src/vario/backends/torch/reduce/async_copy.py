"""Numbers being copied from a device to the host: the copy does not wait, the reader does.

The reader waits for blocking events: others keep a core busy while they wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import torch

from vario.backends.protocols.observing import Later
from vario.core.records import SUM, Table


def fetch_later(tensor: torch.Tensor) -> Later:
    """Start copying a tensor; the result waits for it and returns its numbers, as often as it is called.

    A tensor on the host is used directly: pass one that nothing writes to.
    """
    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        return tensor.numpy
    if tensor.device.type != "cuda":
        return lambda: tensor.cpu().numpy()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    with torch.cuda.device(tensor.device):
        host.copy_(tensor, non_blocking=True)
        copied = torch.cuda.Event(blocking=True)
        copied.record()

    def fetch() -> npt.NDArray[Any]:
        copied.synchronize()
        return host.numpy()

    return fetch


class RowNumber:
    """A number on a device that comes to the host with the rows of its step, without a copy of its own."""

    def __init__(self, row: int) -> None:
        self._row = row
        self.fetch: Callable[[], Table] | None = None
        """Waits for the rows; there once the step has been handed over."""

    def __call__(self) -> float:
        """Return the number; waits for the device."""
        assert self.fetch is not None, "the step is still in progress"
        return float(self.fetch()[self._row, SUM])
