"""Summaries of CUDA tensors: kernels fill a device buffer, one asynchronous copy a step brings it to the host.

Nothing here waits for the device: sizes and addresses are known on the host, results are read by the writer thread
after the copy's event.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vario.backends.torch.reduce import kernels
from vario.core.records import COLUMNS, COUNT, MAX, MIN, Table

_NOTHING = contextlib.nullcontext()

_CAPACITY = 65_536
"""Partial rows held at once, 3.5 MiB; when they are full they are folded into Summaries and used again."""


@dataclass
class SpanTable:
    """Where the spans of one list of tensors lie, on the device; made anew only when an address changed."""

    addresses: tuple[int, ...]
    sizes: tuple[int, ...]
    span_addresses: torch.Tensor
    span_sizes: torch.Tensor
    num_spans: npt.NDArray[np.int64]
    aligned: bool


class CudaRows:
    """The rows of one step on one CUDA device."""

    def __init__(self, device: torch.device, eps: float, columns: frozenset[str]) -> None:
        self.device = device
        # The smallest float32 above zero makes |x| < eps mean x == 0.
        self.eps = eps or 1.4e-45
        self._flags = {
            "WITH_SQUARES": "sum_squares" in columns,
            "WITH_EXTREMES": "min" in columns or "max" in columns,
            "WITH_ZEROS": "zeros" in columns,
            "PARTIAL_COLUMNS": kernels.PARTIAL_COLUMNS,
            "BLOCK": kernels.BLOCK,
            "num_warps": kernels.NUM_WARPS,
        }
        self._num_units = torch.cuda.get_device_properties(device).multi_processor_count
        self._tables: dict[tuple[str, torch.dtype, int], SpanTable] = {}
        self._ranges_on_device: dict[int, tuple[list[int], torch.Tensor]] = {}
        self._partials = self._new_partials(_CAPACITY)
        self._begin()

    def _begin(self) -> None:
        self._used = 0
        self._ranges: list[int] = []
        self._counts: list[int] = []
        self._folded: list[torch.Tensor] = []
        self._streams: dict[int, torch.cuda.Stream] = {}

    def _at_home(self) -> contextlib.AbstractContextManager[Any]:
        """Make this device the current one, unless it is."""
        here = torch._C._cuda_getDevice() == self.device.index
        return _NOTHING if here else torch.cuda.device(self.device)

    def _new_partials(self, capacity: int) -> torch.Tensor:
        return torch.empty((capacity, kernels.PARTIAL_COLUMNS), dtype=torch.float64, device=self.device)

    def _reserve(self, num_partials: int) -> int:
        """The first of so many free partial rows."""
        if self._used + num_partials > len(self._partials):
            self._fold()
            if num_partials > len(self._partials):
                self._partials = self._new_partials(num_partials)
        first = self._used
        self._used += num_partials
        # The handle costs a tenth of a microsecond, the object three.
        handle = torch._C._cuda_getCurrentRawStream(self.device.index)
        if handle not in self._streams:
            self._streams[handle] = torch.cuda.current_stream(self.device)
        return first

    def _add_row(self, first: int, num_partials: int, count: int) -> int:
        self._ranges += (first, first + num_partials)
        self._counts.append(count)
        return len(self._counts) - 1

    def observe(self, elements: torch.Tensor, scale: torch.Tensor | None) -> int:
        """Reduce one flat tensor; its row."""
        count = elements.numel()
        iterations = kernels.ONE_ITERATIONS
        # A tensor too small to keep the device busy in long spans is cut into shorter ones.
        while iterations > 2 and count < iterations * kernels.BLOCK * self._num_units * 2:
            iterations //= 4
        num_spans = max(1, -(-count // (kernels.BLOCK * iterations)))
        first = self._reserve(num_spans)
        with self._at_home():
            kernels.reduce_one[(num_spans,)](
                elements,
                count,
                self._partials,
                first,
                self.eps,
                elements if scale is None else scale,
                HAS_SCALE=scale is not None,
                WIDE=elements.dtype == torch.float64,
                ITERATIONS=iterations,
                **self._flags,
            )
        return self._add_row(first, num_spans, count)

    def observe_many(
        self, tensors: list[torch.Tensor], scale: torch.Tensor | None, name: str, rows: list[int] | None
    ) -> list[int]:
        """Reduce flat tensors of one dtype in one launch, into `rows` of an earlier list of the same sizes if given."""
        table = self._span_table(tensors, name)
        total = int(table.num_spans.sum())
        if rows is None:
            first = self._reserve(total)
            at = first
            rows = []
            for num_spans, count in zip(table.num_spans.tolist(), table.sizes, strict=True):
                rows.append(self._add_row(at, num_spans, count))
                at += num_spans
        else:
            first = self._ranges[2 * rows[0]]
        with self._at_home():
            kernels.reduce_list[(total,)](
                table.span_addresses,
                table.span_sizes,
                tensors[0],
                self._partials,
                first,
                self.eps,
                tensors[0] if scale is None else scale,
                ALIGNED=table.aligned,
                HAS_SCALE=scale is not None,
                WIDE=tensors[0].dtype == torch.float64,
                ITERATIONS=kernels.LIST_ITERATIONS,
                **self._flags,
            )
        return rows

    def can_repeat(self, rows: list[int], tensors: list[torch.Tensor]) -> bool:
        """Whether these rows are not folded yet and were made of tensors of the same sizes."""
        return not self._folded and [self._counts[row] for row in rows] == [tensor.numel() for tensor in tensors]

    def _span_table(self, tensors: list[torch.Tensor], name: str) -> SpanTable:
        key = (name, tensors[0].dtype, len(tensors))
        addresses = tuple([tensor.data_ptr() for tensor in tensors])
        sizes = tuple([tensor.numel() for tensor in tensors])
        table = self._tables.get(key)
        if table is not None and table.addresses == addresses and table.sizes == sizes:
            return table
        counts = np.array(sizes, dtype=np.int64)
        num_spans = np.maximum(1, -(-counts // kernels.SPAN))
        ends = np.cumsum(num_spans)
        nth = np.arange(ends[-1]) - np.repeat(ends - num_spans, num_spans)
        span_bytes = kernels.SPAN * tensors[0].element_size()
        span_addresses = np.repeat(np.array(addresses, dtype=np.int64), num_spans) + nth * span_bytes
        span_sizes = np.minimum(np.repeat(counts, num_spans) - nth * kernels.SPAN, kernels.SPAN).astype(np.int32)
        table = SpanTable(
            addresses,
            sizes,
            self._upload(span_addresses),
            self._upload(span_sizes),
            num_spans,
            all(address % 16 == 0 for address in addresses),
        )
        self._tables[key] = table
        return table

    def _upload(self, array: npt.NDArray[Any]) -> torch.Tensor:
        # Pinned memory comes from torch's caching allocator, which keeps it until this copy has happened.
        return torch.from_numpy(array).pin_memory().to(self.device, non_blocking=True)

    def _fold(self) -> None:
        """Fold all partial rows into Summaries, so that their memory can be used again."""
        num_rows = len(self._ranges) // 2
        if not num_rows:
            return
        with self._at_home():
            stream = torch.cuda.current_stream(self.device)
            others = [other for handle, other in self._streams.items() if handle != stream.cuda_stream]
            for other in others:
                stream.wait_stream(other)
            rows = torch.empty((num_rows, len(COLUMNS)), dtype=torch.float64, device=self.device)
            kernels.finish[(num_rows,)](
                self._partials,
                self._upload_ranges(),
                rows,
                PARTIAL_COLUMNS=kernels.PARTIAL_COLUMNS,
                ROW_COLUMNS=len(COLUMNS),
                BLOCK=256,
                num_warps=4,
            )
            for other in others:
                other.wait_stream(stream)
        self._folded.append(rows)
        self._used, self._ranges = 0, []

    def _upload_ranges(self) -> torch.Tensor:
        """Where each row's partial rows are: mostly as in the step before, and then on the device already."""
        nth = len(self._folded)
        known = self._ranges_on_device.get(nth)
        if known is None or known[0] != self._ranges:
            known = self._ranges, self._upload(np.array(self._ranges, dtype=np.int64))
            self._ranges_on_device[nth] = known
        return known[1]

    def collect(self, keep: bool = False) -> Callable[[], Table] | None:
        """End the step, unless told to `keep` it going: launch the folding and the copy; the result waits for them."""
        if not self._counts:
            return None
        counts = list(self._counts)
        self._fold()
        with self._at_home():
            device_rows = self._folded[0] if len(self._folded) == 1 else torch.cat(self._folded)
            host_rows = torch.empty(device_rows.shape, dtype=torch.float64, device="cpu", pin_memory=True)
            host_rows.copy_(device_rows, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
        if not keep:
            self._begin()
        with_extremes = bool(self._flags["WITH_EXTREMES"])

        def fetch() -> Table:
            copied.synchronize()
            table: Table = host_rows.numpy().copy()
            table[:, COUNT] = counts
            nothing = (table[:, MIN] > table[:, MAX]) | (not with_extremes)
            table[nothing, MIN] = table[nothing, MAX] = np.nan
            return table

        return fetch
