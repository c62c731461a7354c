"""The loss in what a model returns, and moments of the device that computes it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from vario.backends.base import Later
from vario.backends.torch.reduce.async_copy import fetch_later
from vario.backends.torch.reduce.tensors import local_part


def find_loss(output: Any) -> torch.Tensor | None:
    """The loss that a model returned: `.loss` or `["loss"]` of its output, or what is one number in it or itself."""
    if type(output) in (tuple, list):
        numbers = (item for item in output if isinstance(item, torch.Tensor) and item.dim() == 0)
        output = next((item for item in numbers if item.requires_grad), None)
    if not isinstance(output, torch.Tensor):
        output = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if not isinstance(output, torch.Tensor) or not output.is_floating_point() or output.numel() != 1:
        return None
    return output


@torch.no_grad()
def loss_in(output: Any) -> Later | None:
    """The loss that a model returned, on its way to the host, if it returned one."""
    loss = find_loss(output)
    if loss is None or hasattr(loss, "to_local") or (loss := local_part(loss)) is None:
        return None  # of a number that is spread over ranks this one has a share, or an addend
    # A loop may divide its loss in place: on a device that comes after the copy, on the host a copy is needed.
    return fetch_later(loss.to(torch.float32, copy=loss.device.type == "cpu").reshape(()))


@dataclass(frozen=True)
class HostMark:
    """A moment of the host."""

    seconds: float

    def seconds_until(self, later: Any) -> float:
        """The time that passed between two moments."""
        return float(later.seconds - self.seconds)


@dataclass(frozen=True)
class DeviceMark:
    """A moment in the work of a CUDA device."""

    event: torch.cuda.Event

    def seconds_until(self, later: Any) -> float:
        """The time that passed between two moments; waits for both."""
        later.event.synchronize()
        return float(self.event.elapsed_time(later.event)) / 1000.0


def time_mark(device: torch.device) -> HostMark | DeviceMark:
    """This moment, for work on a device."""
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return HostMark(time.perf_counter())
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return DeviceMark(event)
