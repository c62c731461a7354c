"""The loss in what a training function or cell returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mindspore
from mindspore import Tensor

from vario.backends.mindspore.tensors import on_host, size

_FLOATS = (mindspore.float16, mindspore.float32, mindspore.float64, mindspore.bfloat16)


def found_loss(outputs: Any) -> Any:
    """Return the loss in outputs: the first number in them, or `["loss"]`; None if there is none."""
    if isinstance(outputs, Mapping):
        outputs = outputs.get("loss")
    if isinstance(outputs, (tuple, list)):
        outputs = outputs[0] if outputs else None
    is_loss = isinstance(outputs, Tensor) and size(outputs) == 1 and outputs.dtype in _FLOATS
    return outputs if is_loss else None


def loss_value(loss: Any, scale: Any) -> Callable[[], float]:
    """Return a call that waits for a loss, divided by `scale`; on any thread."""

    def fetch() -> float:
        value = float(on_host(loss).reshape(-1)[0])
        return value if scale is None else value / float(on_host(scale).reshape(-1)[0])

    return fetch
