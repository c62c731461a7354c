"""Plain numbers of a step: Python's, or one-element tensors that may still be on their way."""

from __future__ import annotations

import math
from typing import Any

from vario.training.step_buffer import StepFrames


def keep_number(frames: StepFrames, name: str, value: Any) -> None:
    """Keep a number of the step in progress; one on a device is not waited for."""
    if not _is_on_a_device(value):
        frames.log(name, float(value.item() if hasattr(value, "item") else value))
        return
    if math.prod(value.shape) != 1:
        raise ValueError(f"expected one number, got a tensor of shape {tuple(value.shape)}")
    frames.log_later(name, value)


def _is_on_a_device(value: Any) -> bool:
    device = getattr(value, "device", None)
    return device is not None and not str(device).startswith("cpu")
