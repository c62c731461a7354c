"""The loss in a model's output, and time marks of the device that computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from vario.backends.host_clock import HostMark, host_mark
from vario.backends.protocols.observing import Later
from vario.backends.torch.reduce.async_copy import fetch_later
from vario.backends.torch.reduce.tensors import local_part


def find_loss(output: Any) -> torch.Tensor | None:
    """Return the loss in a model's output: its `.loss` or `["loss"]`, or the one number in it."""
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
    """Return the loss in a model's output, being copied to the host, if there is one."""
    loss = find_loss(output)
    if loss is None or hasattr(loss, "to_local") or (loss := local_part(loss)) is None:
        return None  # of a number sharded over ranks this one has only a part
    # A loop may divide its loss in place: on a device that happens after the copy, on the host a copy is needed.
    return fetch_later(loss.to(torch.float32, copy=loss.device.type == "cpu").reshape(()))


@dataclass(frozen=True)
class DeviceMark:
    """A point in the work of a CUDA device."""

    event: torch.cuda.Event

    def seconds_until(self, later: Any) -> float:
        """Return the seconds between two marks; waits for both."""
        later.event.synchronize()
        return float(self.event.elapsed_time(later.event)) / 1000.0


def time_mark(device: torch.device) -> HostMark | DeviceMark:
    """Return a mark of the current time, for work on a device."""
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return host_mark()
    event = torch.cuda.Event(enable_timing=True, blocking=True)
    event.record(torch.cuda.current_stream(device))
    return DeviceMark(event)
