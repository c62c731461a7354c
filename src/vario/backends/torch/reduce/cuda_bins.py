"""Distributions of CUDA tensors: kernels add to rows on the device, which come to the host with one copy per step.

Nothing here waits for the device.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from vario.backends.torch.reduce import bin_kernels
from vario.backends.torch.reduce.launching import Kernel
from vario.backends.torch.reduce.reading_speed import ReadingSpeed
from vario.core.elements.bins import NUM_BINS

_ROWS_AT_ONCE = 256
"""Rows for single tensors are taken from blocks of so many."""


class CudaBins:
    """Counts the elements of tensors on one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._index = torch.cuda.current_device() if device.index is None else device.index
        self._one, self._list = Kernel(bin_kernels.count_one), Kernel(bin_kernels.count_list)
        self._speed = ReadingSpeed(device)
        self._free: tuple[int, torch.Tensor, int] | None = None
        """The stream of a block of rows for single tensors, the block, and how many of its rows are used."""

    def end_step(self) -> None:
        """Let the rows of the next step be others."""
        self._free = None
        self._speed.look()

    def seconds(self, num_bytes: int) -> float:
        """Return the estimated time of the device for this many bytes in one launch."""
        return self._speed.seconds(num_bytes)

    def count(self, tensors: Sequence[torch.Tensor], scale: torch.Tensor | None) -> torch.Tensor:
        """Return the counts of flat tensors of one dtype without gaps, divided by `scale`: a row each."""
        with torch.cuda.device(self._device):
            if len(tensors) == 1:
                return self._count_one(tensors[0], scale)
            return self._count_list(tensors, scale)

    def _constants(self, tensor: torch.Tensor, scale: torch.Tensor | None) -> dict[str, Any]:
        return {"HAS_SCALE": scale is not None, "WIDE": tensor.dtype is torch.float64, **bin_kernels.CONSTANTS}

    def _count_one(self, tensor: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
        row = self._row()
        count = tensor.numel()
        like = tensor if scale is None else scale
        address = tensor.data_ptr()
        kind = tensor.dtype, address & 15, count <= 2**31 - 1, row.data_ptr() & 15, _kind_of(scale)
        num_programs = max(1, -(-count // (bin_kernels.BLOCK * bin_kernels.ONE_ITERATIONS)))
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        if not self._one.launch(kind, num_programs, stream, address, count, row.data_ptr(), like.data_ptr()):
            constants = {**self._constants(tensor, scale), "ITERATIONS": bin_kernels.ONE_ITERATIONS}
            self._one.compile(kind, num_programs, tensor, count, row, like, **constants)
        return row

    def _row(self) -> torch.Tensor:
        """Return a row of zeros."""
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        if self._free is None or self._free[0] != stream or self._free[2] == _ROWS_AT_ONCE:
            # Zeroed on the stream of its tensors.
            self._free = stream, self._zeros(_ROWS_AT_ONCE), 0
        handle, block, used = self._free
        self._free = handle, block, used + 1
        return block[used : used + 1]

    def _zeros(self, num_rows: int) -> torch.Tensor:
        return torch.zeros((num_rows, NUM_BINS), dtype=torch.int32, device=self._device)

    def _count_list(self, tensors: Sequence[torch.Tensor], scale: torch.Tensor | None) -> torch.Tensor:
        sizes = np.array([tensor.numel() for tensor in tensors], np.int64)
        num_spans = np.maximum(1, -(-sizes // bin_kernels.SPAN))
        ends = np.cumsum(num_spans)
        owners = np.repeat(np.arange(len(sizes)), num_spans)
        nth = np.arange(ends[-1]) - np.repeat(ends - num_spans, num_spans)
        lengths = np.minimum(sizes[owners] - nth * bin_kernels.SPAN, bin_kernels.SPAN)
        addresses = [tensor.data_ptr() for tensor in tensors]
        parts = [np.array(addresses, np.int64), nth * bin_kernels.SPAN * tensors[0].element_size(), owners, lengths]
        tables = self._uploaded(parts)
        rows, like = self._zeros(len(tensors)), tensors[0] if scale is None else scale
        num_bytes = int(sizes.sum()) * tensors[0].element_size()
        clock = self._speed.start(num_bytes)
        is_aligned = not functools.reduce(operator.or_, addresses) & 15
        constants = {**self._constants(tensors[0], scale), "ALIGNED": is_aligned}
        bin_kernels.count_list[(int(ends[-1]),)](
            tables[0], tables[2], tables[1], tables[3], tensors[0], rows, like, **constants
        )
        if clock is not None:
            self._speed.stop(clock)
        return rows

    def _uploaded(self, parts: Sequence[Any]) -> list[torch.Tensor]:
        """Return whole numbers on the device: one copy for all."""
        whole = torch.empty(sum(map(len, parts)), dtype=torch.int64, device="cpu", pin_memory=True)
        np.concatenate(parts, out=whole.numpy())
        there = whole.to(self._device, non_blocking=True)
        begins = accumulate(map(len, parts), initial=0)
        return [there[begin : begin + len(part)] for begin, part in zip(begins, parts, strict=False)]


def _kind_of(scale: torch.Tensor | None) -> tuple[torch.dtype, int] | None:
    return None if scale is None else (scale.dtype, scale.data_ptr() & 15)
