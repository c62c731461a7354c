"""How much work a training pass is: the rows and tokens of its batch, and the operations its model needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from vario.backends.peak_flops import peak_flops
from vario.backends.protocols.observing import BatchSize
from vario.backends.torch.loop.sparse_hooks import has_compiled
from vario.backends.torch.modules.pass_flops import PassFlops
from vario.backends.torch.targets import Targets

MOST_TENSORS = 16
_TOKENS = (torch.int64, torch.int32)


class PassWork:
    """Sizes of batches, and the operations of passes."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._counter: PassFlops | None = None

    def batch_size(self, inputs: Any) -> BatchSize | None:
        """Return how many rows and tokens a batch has; None if it has no tensors with rows."""
        rows: torch.Tensor | None = None
        for number, tensor in enumerate(_tensors(inputs)):
            if number >= MOST_TENSORS:
                break
            if tensor.dtype in _TOKENS and tensor.dim() == 2:
                return BatchSize(tensor.shape[0], tensor.numel())
            if rows is None and tensor.dim():
                rows = tensor
        return None if rows is None else BatchSize(rows.shape[0], None)

    def begin_count(self) -> bool:
        """Start counting the operations of a pass, if that cannot disturb it; return whether it does."""
        parameters = self._targets.all_parameters.values()
        is_plain = self._targets.engine.has_plain_gradients and not has_compiled()
        is_plain = is_plain and all(type(each) in (torch.Tensor, torch.nn.Parameter) for each in parameters)
        modules = (module for root in self._targets.roots.values() for module in root.modules())
        if not is_plain or any(isinstance(module, torch.jit.ScriptModule) for module in modules):
            return False
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return False
        self._counter = self._counter or PassFlops()
        self._counter.begin()
        return True

    def end_count(self) -> None:
        """Stop counting, until the next pass."""
        if self._counter is not None:
            self._counter.end()

    def counted(self) -> Mapping[str, tuple[float, float | None]]:
        """Return by precision the operations of all counted passes, and how many a second the device can do."""
        if self._counter is None:
            return {}
        if self._counter.failure is not None:
            raise self._counter.failure
        device = next(iter(self._targets.all_parameters.values())).device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        return {precision: (flops, peak_flops(name, precision)) for precision, flops in self._counter.found.items()}


def _tensors(inputs: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(inputs, torch.Tensor):
        yield inputs
    elif depth < 3 and isinstance(inputs, Mapping):
        for item in inputs.values():
            yield from _tensors(item, depth + 1)
    elif depth < 3 and isinstance(inputs, (tuple, list)):
        for item in inputs:
            yield from _tensors(item, depth + 1)
