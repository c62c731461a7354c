"""Summaries of CUDA tensors: kernels fill a device buffer, one asynchronous copy per step brings it to the host.

Nothing here waits for the device: sizes and addresses are known on the host, and the writer thread reads the results
after the copy's event.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vario.backends.torch.reduce import kernels
from vario.backends.torch.reduce.async_copy import fetch_later
from vario.backends.torch.reduce.host_memory import MOST_ROWS, StepMemory
from vario.backends.torch.reduce.launching import LARGEST, Kernel
from vario.backends.torch.reduce.reading_speed import ReadingSpeed
from vario.core.records import COLUMNS, COUNT, MAX, MIN, Table

_NOTHING = contextlib.nullcontext()

_FINISH = {"PARTIAL_COLUMNS": kernels.PARTIAL_COLUMNS, "ROW_COLUMNS": len(COLUMNS), "BLOCK": 256, "num_warps": 4}
_MOST_TABLES = 4
"""Sets of sizes that are remembered for a list of tensors."""
_TORCH = {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64}
_CAPACITY = 65_536
"""Partial rows at once, 3.5 MiB; when they are full they are folded into Summaries and reused."""


@dataclass
class SpanTable:
    """The spans of a list of tensors of these sizes, on the device."""

    sizes: tuple[int, ...]
    spans: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    """Of each span: the tensor it is of, how many bytes after its beginning, and how many elements it has."""
    num_spans: int
    ranges: list[int]
    """Where each tensor's spans begin and end."""


class CudaRows:
    """The rows of one step on one CUDA device."""

    def __init__(self, device: torch.device, eps: float, columns: frozenset[str]) -> None:
        self.device = device
        self._index = torch.cuda.current_device() if device.index is None else device.index
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
        self._tables: dict[tuple[str, torch.dtype, int], list[SpanTable]] = {}
        self._ranges_on_device: dict[int, tuple[list[int], torch.Tensor]] = {}
        self._one, self._list, self._finish = map(Kernel, (kernels.reduce_one, kernels.reduce_list, kernels.finish))
        self._new_partials(_CAPACITY)
        self._speed = ReadingSpeed(device)
        self._begin()

    def _begin(self) -> None:
        self._used = 0
        self._ranges: list[int] = []
        self._counts: list[int] = []
        self._folded: list[torch.Tensor] = []
        self._streams: dict[int, torch.cuda.Stream] = {}
        self._memory = StepMemory(self._index)

    def stream(self) -> int:
        """Return the handle of the current stream."""
        return torch._C._cuda_getCurrentRawStream(self._index)

    def on(self, stream: int) -> contextlib.AbstractContextManager[Any]:
        """Make a stream of this device the current one, if it is not."""
        if self.stream() == stream:
            return _NOTHING
        return torch.cuda.stream(torch.cuda.ExternalStream(stream, self.device))

    def _at_home(self) -> contextlib.AbstractContextManager[Any]:
        """Make this device the current one, if it is not."""
        here = torch._C._cuda_getDevice() == self._index
        return _NOTHING if here else torch.cuda.device(self.device)

    def _new_partials(self, capacity: int) -> None:
        self._partials = torch.empty((capacity, kernels.PARTIAL_COLUMNS), dtype=torch.float64, device=self.device)
        self._partials_address = self._partials.data_ptr()

    def _reserve(self, num_partials: int) -> tuple[int, int]:
        """Return the first of this many free partial rows, and the handle of the current stream."""
        if self._used + num_partials > len(self._partials):
            self._fold()
            if num_partials > len(self._partials):
                self._new_partials(num_partials)
        first = self._used
        self._used += num_partials
        # The handle costs a tenth of a microsecond, the object three.
        handle = self.stream()
        if handle not in self._streams:
            self._streams[handle] = torch.cuda.current_stream(self.device)
        return first, handle

    def observe(self, elements: torch.Tensor, count: int, scale: torch.Tensor | None) -> int:
        """Reduce one tensor of so many elements without gaps and return its row."""
        iterations = kernels.ONE_ITERATIONS
        # A tensor too small to keep the device busy in long spans is cut into shorter ones.
        while iterations > 2 and count < iterations * kernels.BLOCK * self._num_units * 2:
            iterations //= 4
        num_spans = max(1, -(-count // (kernels.BLOCK * iterations)))
        first, stream = self._reserve(num_spans)
        dtype, address = elements.dtype, elements.data_ptr()
        like = elements if scale is None else scale
        scale_address = address if scale is None else scale.data_ptr()
        kind = dtype, iterations, address & 15, count <= LARGEST, None if scale is None else _kind_of(scale)
        with self._at_home():
            if not self._one.launch(
                kind, num_spans, stream, address, count, self._partials_address, first, self.eps, scale_address
            ):
                constants = self._constants(scale, dtype, ITERATIONS=iterations)
                self._one.compile(kind, num_spans, elements, count, self._partials, first, self.eps, like, **constants)
        self._ranges += (first, first + num_spans)
        self._counts.append(count)
        return len(self._counts) - 1

    def _constants(self, scale: torch.Tensor | None, dtype: torch.dtype, **others: Any) -> dict[str, Any]:
        return {"HAS_SCALE": scale is not None, "WIDE": dtype == torch.float64, **others, **self._flags}

    def observe_many(
        self,
        sample: torch.Tensor,
        addresses: tuple[int, ...],
        sizes: tuple[int, ...],
        scale: torch.Tensor | None,
        name: str,
        rows: Sequence[int] | None,
    ) -> Sequence[int]:
        """Reduce tensors of the dtype of `sample`, at these addresses and without gaps, in one launch.

        They go into `rows` of an earlier list of the same sizes if given.
        """
        table = self._span_table(sample, sizes, name)
        aligned = not functools.reduce(operator.or_, addresses) & 15
        total = table.num_spans
        stream = self.stream()
        if rows is None:
            first, _ = self._reserve(total)
            rows = range(len(self._counts), len(self._counts) + len(sizes))
            self._ranges += [first + at for at in table.ranges]
            self._counts += sizes
        else:
            first = self._ranges[2 * rows[0]]
        num_bytes = sum(sizes) * sample.element_size()
        clock = self._speed.start(num_bytes)
        address, like = sample.data_ptr(), sample if scale is None else scale
        kind = sample.dtype, aligned, address & 15, None if scale is None else _kind_of(scale)
        with self._at_home():
            tables = self._memory.numbers(addresses), *table.spans
            uploaded = map(torch.Tensor.data_ptr, tables)
            fixed = self._partials_address, first, self.eps, like.data_ptr()
            if not self._list.launch(kind, total, stream, *uploaded, address, *fixed):
                constants = {"ALIGNED": aligned, "ITERATIONS": kernels.LIST_ITERATIONS}
                tensors = *tables, sample, self._partials, first, self.eps, like
                self._list.compile(kind, total, *tensors, **self._constants(scale, sample.dtype, **constants))
        if clock is not None:
            self._speed.stop(clock)
        return rows

    def seconds(self, num_bytes: int) -> float:
        """Return the estimated time of the device for this many bytes in one launch."""
        return self._speed.seconds(num_bytes)

    def can_repeat(self, rows: Sequence[int], sizes: Sequence[int]) -> bool:
        """Whether these rows are not folded yet and come from tensors of the same sizes."""
        return not self._folded and [self._counts[row] for row in rows] == list(sizes)

    def _span_table(self, sample: torch.Tensor, sizes: tuple[int, ...], name: str) -> SpanTable:
        key = (name, sample.dtype, len(sizes))
        tables = self._tables.setdefault(key, [])
        for at, table in enumerate(tables):
            if table.sizes == sizes:
                if at:
                    tables.insert(0, tables.pop(at))
                return table
        counts = np.array(sizes, dtype=np.int64)
        num_spans = np.maximum(1, -(-counts // kernels.SPAN))
        ends = np.cumsum(num_spans)
        owners = np.repeat(np.arange(len(sizes), dtype=np.int32), num_spans)
        nth = np.arange(ends[-1]) - np.repeat(ends - num_spans, num_spans)
        lengths = np.minimum(np.repeat(counts, num_spans) - nth * kernels.SPAN, kernels.SPAN).astype(np.int32)
        spans = self._upload(owners), self._upload(nth * kernels.SPAN * sample.element_size()), self._upload(lengths)
        ranges = np.stack((ends - num_spans, ends), axis=1).reshape(-1).tolist()
        table = SpanTable(sizes, spans, len(nth), ranges)
        self._tables[key] = [table, *tables[: _MOST_TABLES - 1]]
        return table

    def _upload(self, array: npt.NDArray[Any]) -> torch.Tensor:
        # Pinned memory comes from torch's caching allocator, which keeps it until this copy has happened.
        pinned = torch.empty(len(array), dtype=_TORCH[array.dtype], device="cpu", pin_memory=True)
        pinned.numpy()[:] = array
        return pinned.to(self.device, non_blocking=True)

    def _fold(self, is_last: bool = False) -> None:
        """Fold all partial rows into Summaries, so that their memory can be reused. `is_last`: of this step."""
        num_rows = len(self._ranges) // 2
        if not num_rows:
            return
        with self._at_home():
            stream = torch.cuda.current_stream(self.device)
            others = [other for handle, other in self._streams.items() if handle != stream.cuda_stream]
            for other in others:
                stream.wait_stream(other)
            if is_last and not self._folded and num_rows <= MOST_ROWS:
                rows = self._memory.rows(num_rows)
            else:
                rows = torch.empty((num_rows, len(COLUMNS)), dtype=torch.float64, device=self.device)
            ranges = self._upload_ranges()
            places = self._partials_address, ranges.data_ptr(), rows.data_ptr()
            if not self._finish.launch((), num_rows, stream.cuda_stream, *places):
                self._finish.compile((), num_rows, self._partials, ranges, rows, **_FINISH)
            for other in others:
                other.wait_stream(stream)
        self._folded.append(rows)
        self._used, self._ranges = 0, []

    def _upload_ranges(self) -> torch.Tensor:
        """Return where each row's partial rows are: mostly as in the previous step, and then already on the device."""
        nth = len(self._folded)
        known = self._ranges_on_device.get(nth)
        if known is None or known[0] != self._ranges:
            known = self._ranges, self._upload(np.array(self._ranges, dtype=np.int64))
            self._ranges_on_device[nth] = known
        return known[1]

    def collect(self, keep: bool = False) -> Callable[[], Table] | None:
        """End the step, or with `keep` continue it: launch the folding and the copy; the result waits for them."""
        if not self._counts:
            return None
        counts = list(self._counts)
        self._fold(is_last=not keep)
        with self._at_home():
            rows = self._folded[0] if len(self._folded) == 1 else torch.cat(self._folded)
            copied = self._memory.fetch if rows.is_cpu else fetch_later(rows)
            if not keep:
                self._memory.end()
        if not keep:
            self._begin()
        with_extremes = bool(self._flags["WITH_EXTREMES"])

        def fetch() -> Table:
            table: Table = copied().copy()
            self._speed.look()
            table[:, COUNT] = counts
            nothing = (table[:, MIN] > table[:, MAX]) | (not with_extremes)
            table[nothing, MIN] = table[nothing, MAX] = np.nan
            return table

        return fetch


def _kind_of(scale: torch.Tensor) -> tuple[torch.dtype, int]:
    return scale.dtype, scale.data_ptr() & 15
