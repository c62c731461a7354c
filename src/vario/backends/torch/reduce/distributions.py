"""Distributions of torch tensors that have a row in the step: counted where the tensors are."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from vario.backends.bin_counts import count_bfloats, count_bins, count_each
from vario.backends.torch.reduce.async_copy import fetch_later
from vario.backends.torch.reduce.aten_bins import count_elements
from vario.backends.torch.reduce.memory_reads import REAL
from vario.backends.torch.reduce.small_tensors import SMALL, blocks, end_to_end
from vario.backends.torch.reduce.tensors import stored_elements, unseen
from vario.core.elements.bins import ZERO, BinTable, Counts

MOST_WAITING = 1 << 22
"""The most elements of small tensors that wait for another thread; beyond that they are counted at once."""
MOST_AT_ONCE = 1 << 30
"""Elements of a tensor on a device that get a row: its counters have 32 bits."""


class TorchDistributions:
    """The distributions of one step. Small CPU tensors are copied, and counted by the thread that fetches them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._has_triton = importlib.util.find_spec("triton") is not None
        self._on_device: dict[torch.device, Any] = {}
        self.device_seconds = 0.0
        """Estimated device time for what was counted; the reader resets it to 0."""
        self._begin()

    def _begin(self) -> None:
        self._counts: dict[int, Counts] = {}
        self._waiting: list[tuple[Sequence[int], list[int], torch.Tensor, float]] = []
        """Rows and sizes of small tensors, their elements end to end, and the scale."""
        self._num_waiting = 0
        self._there: dict[torch.device, list[tuple[Sequence[int], torch.Tensor]]] = {}
        """Rows of tensors on a device, and their counts there."""
        self._implicit: dict[int, int] = {}
        """Zeros that sparse tensors do not store."""

    def count_rows(
        self, rows: Sequence[int | None], tensors: Sequence[torch.Tensor], scale: torch.Tensor | None = None
    ) -> None:
        """Count the elements of tensors, divided by `scale`; a row that comes again in the step replaces itself."""
        with torch.no_grad(), unseen(), self._lock:
            together: dict[Any, tuple[list[int], list[torch.Tensor]]] = {}
            for row, tensor in zip(rows, tensors, strict=True):
                if row is None:
                    continue
                elements, num_elements = stored_elements(tensor)
                if elements is None or not (elements.is_floating_point() or elements.is_complex()):
                    continue
                if num_elements != elements.numel():
                    self._implicit[row] = num_elements - elements.numel()
                key = self._kind(elements)
                if key is None:
                    self._counts[row] = _count_here(elements, scale)
                else:
                    members = together.setdefault(key, ([], []))
                    members[0].append(row)
                    members[1].append(elements)
            for key, (chosen, found) in together.items():
                if key[0] is None:
                    self._copy(chosen, found, scale)
                else:
                    self._launch(key[0], chosen, found, scale)

    def _kind(self, elements: torch.Tensor) -> tuple[Any, ...] | None:
        """Return what tensors that are counted together have in common; None for one that is counted alone."""
        if not elements.is_cpu:
            return elements.device, elements.dtype, elements.is_neg(), elements.numel() > MOST_AT_ONCE
        if elements.dtype in REAL and 0 < elements.numel() <= SMALL and not elements.is_neg():
            return None, elements.dtype
        return None

    def _copy(self, rows: list[int], tensors: list[torch.Tensor], scale: torch.Tensor | None) -> None:
        sizes = list(map(torch.Tensor.numel, tensors))
        self._waiting.append((rows, sizes, end_to_end(tensors, sizes), 1.0 if scale is None else float(scale) or 1.0))
        self._num_waiting += sum(sizes)
        if self._num_waiting > MOST_WAITING:
            self._counts.update(_counted(self._waiting))
            self._waiting, self._num_waiting = [], 0

    def _launch(
        self, device: torch.device, rows: list[int], tensors: list[torch.Tensor], scale: torch.Tensor | None
    ) -> None:
        scale = None if scale is None else scale.to(device, non_blocking=True)
        there = self._there.setdefault(device, [])
        if not self._takes(tensors[0]):
            for row, tensor in zip(rows, tensors, strict=True):
                there.append(([row], count_elements(tensor.resolve_conj().resolve_neg(), scale)))
            return
        counter = self._on_device.get(device)
        if counter is None:
            from vario.backends.torch.reduce.cuda_bins import CudaBins

            counter = self._on_device[device] = CudaBins(device)
        there.append((rows, counter.count(tensors, scale)))
        self.device_seconds += counter.seconds(sum(tensor.nbytes for tensor in tensors))

    def _takes(self, tensor: torch.Tensor) -> bool:
        """Whether the kernels read a tensor."""
        is_real = tensor.dtype in REAL and not tensor.is_neg()
        return self._has_triton and tensor.is_cuda and is_real and 0 < tensor.numel() <= MOST_AT_ONCE

    def collect_rows(self) -> Callable[[], BinTable]:
        """End the step; return a function that waits for the counts and returns them, on any thread."""
        with self._lock:
            counts, waiting, implicit = self._counts, self._waiting, self._implicit
            fetches = [
                ([row for rows, _ in there for row in rows], fetch_later(torch.cat([found for _, found in there])))
                for there in self._there.values()
            ]
            for counter in self._on_device.values():
                counter.end_step()
            self._begin()
        known: list[BinTable] = []

        def fetch() -> BinTable:
            if not known:
                counts.update(_counted(waiting))
                for rows, later in fetches:
                    counts.update(zip(rows, np.asarray(later(), np.int64), strict=True))
                for row, zeros in implicit.items():
                    counts[row][ZERO] += zeros
                known.append(BinTable(counts))
            return known[0]

        return fetch


def _counted(waiting: Sequence[tuple[Sequence[int], list[int], torch.Tensor, float]]) -> dict[int, Counts]:
    found: dict[int, Counts] = {}
    for rows, sizes, flat, scale in waiting:
        here = flat[: sum(sizes)]
        values = (here if here.dtype in (torch.float32, torch.float64) else here.float()).numpy()
        found.update(zip(rows, count_each(values, np.array(sizes, np.int64), scale), strict=True))
        blocks.give_back(flat)
    return found


def _count_here(elements: torch.Tensor, scale: torch.Tensor | None) -> Counts:
    """Count the elements of one flat tensor on the host."""
    factor = 1.0 if scale is None else float(scale) or 1.0
    elements = elements.detach().resolve_conj().resolve_neg()
    if elements.dtype is torch.bfloat16:
        return count_bfloats(elements.view(torch.int16).numpy().view(np.uint16), factor)
    if elements.dtype is torch.complex32:
        elements = elements.to(torch.complex64)
    elif elements.dtype not in (torch.float16, torch.float32, torch.float64) and not elements.is_complex():
        elements = elements.float()
    return count_bins(elements.numpy(), factor)
