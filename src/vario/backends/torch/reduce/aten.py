"""Summaries on any device with plain tensor operations: slower than the kernels, but also without host syncs.

Used for devices without Triton (MPS, XPU, ...) and for CUDA tensors the kernels do not read (complex ones).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from vario.core.records import COLUMNS, MAX, MIN, Table


class AtenRows:
    """The rows of one step on one device."""

    def __init__(self, device: torch.device, eps: float) -> None:
        self.eps = eps
        # MPS has no float64; a float32 row is the best it can store.
        self._dtype = torch.float32 if device.type == "mps" else torch.float64
        # Half-precision magnitudes of complex32 would be rounded before they are summed.
        self._complex = torch.complex64 if device.type == "mps" else torch.complex128
        self._rows: list[torch.Tensor] = []

    def seconds(self, num_bytes: int) -> float:
        """Return 0: the reading speed of this device is not known."""
        return 0.0

    def observe(self, elements: torch.Tensor, count: int, scale: torch.Tensor | None) -> int:
        """Reduce one flat tensor of so many elements and return its row."""
        self._rows.append(self.summary(elements, count, scale))
        return len(self._rows) - 1

    def summary(
        self, elements: torch.Tensor, count: int | None = None, scale: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the Summary of a flat tensor (of so many elements), where the tensor is."""
        count = elements.numel() if count is None else count
        wide = elements.to(self._complex).abs() if elements.is_complex() else elements.to(self._dtype)
        if scale is not None:
            wide = wide / scale.to(self._dtype)
        if not count:
            wide = wide.new_full((1,), torch.nan)
        is_nan = wide.isnan()
        is_small = wide.abs() < self.eps if self.eps else wide == 0
        row = [
            wide.new_tensor(float(count)),
            wide.sum() if count else wide.new_zeros(()),
            wide.square().sum() if count else wide.new_zeros(()),
            wide.masked_fill(is_nan, torch.inf).min(),
            wide.masked_fill(is_nan, -torch.inf).max(),
            is_nan.sum().to(self._dtype) if count else wide.new_zeros(()),
            wide.isinf().sum().to(self._dtype),
            is_small.sum().to(self._dtype),
        ]
        return torch.stack(row)

    def collect(self, keep: bool = False) -> Callable[[], Table] | None:
        """End the step, or with `keep` continue it: one copy for all rows; the result waits for it."""
        if not self._rows:
            return None
        stacked = torch.stack(self._rows)
        if not keep:
            self._rows = []
        host = stacked.to("cpu", non_blocking=False) if stacked.device.type == "cpu" else _begin_copy(stacked)

        def fetch() -> Table:
            rows = host() if callable(host) else host
            table: Table = rows.double().numpy().reshape(-1, len(COLUMNS)).copy()
            nothing = table[:, MIN] > table[:, MAX]
            table[nothing, MIN] = table[nothing, MAX] = float("nan")
            return table

        return fetch


def _begin_copy(rows: torch.Tensor) -> Callable[[], torch.Tensor]:
    if rows.device.type != "cuda":
        return lambda: rows.cpu()
    host = torch.empty(rows.shape, dtype=rows.dtype, device="cpu", pin_memory=True)
    host.copy_(rows, non_blocking=True)
    copied = torch.cuda.Event(blocking=True)
    copied.record()

    def wait() -> torch.Tensor:
        copied.synchronize()
        return host

    return wait
