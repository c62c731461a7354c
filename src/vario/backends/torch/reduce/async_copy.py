"""Numbers on their way from a device to the host: copied without waiting, read by whoever needs them."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch

from vario.backends.base import Later


def fetch_later(tensor: torch.Tensor) -> Later:
    """Begin to copy a tensor; the result waits for it and gives its numbers, as often as it is called.

    A tensor on the host is taken as it is: hand over one that nobody writes to.
    """
    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        return tensor.numpy
    if tensor.device.type != "cuda":
        return lambda: tensor.cpu().numpy()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    with torch.cuda.device(tensor.device):
        host.copy_(tensor, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()

    def fetch() -> npt.NDArray[Any]:
        copied.synchronize()
        return host.numpy()

    return fetch
