"""Summaries of torch tensors on any device: each device reduces its own, and one table comes out."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from vario.backends import native
from vario.backends.torch.reduce import cpu
from vario.backends.torch.reduce.async_copy import RowNumber
from vario.backends.torch.reduce.aten import AtenRows
from vario.backends.torch.reduce.memory_reads import has_plain_memory
from vario.backends.torch.reduce.native_lists import NativeLists, summary
from vario.backends.torch.reduce.plain_lists import Group, PlainList, groups_of
from vario.backends.torch.reduce.small_tensors import LEAST_IN_LIST, SMALL, SmallTensors, is_small, small_sizes
from vario.backends.torch.reduce.steady_tensors import Followed, Name, SteadyTensors, room
from vario.backends.torch.reduce.tensors import (
    flat,
    is_inside_transform,
    local_part,
    plain_number,
    stored_elements,
    unseen,
    why_without_numbers,
)
from vario.core.records import COLUMNS, COUNT, MAX, MIN, NANS, ZEROS, Table, empty_table, merge_all


class TorchSummaries:
    """The rows of one step: small CPU tensors are copied, larger ones reduced at once, devices work asynchronously."""

    def __init__(self, eps: float, columns: frozenset[str]) -> None:
        self.eps = eps
        self.columns = columns
        self._lock = threading.Lock()
        self._on_device: dict[tuple[torch.device, str], Any] = {}
        self._steady = SteadyTensors()
        self._plain: dict[str, PlainList] = {}
        """Lists whose latest tensors were plain blocks of numbers."""
        self.device_seconds = 0.0
        """Estimated device time for what was observed; the reader resets it to 0."""
        self._has_triton = importlib.util.find_spec("triton") is not None
        self._begin()

    def _begin(self) -> None:
        self._host: list[cpu.Row] = []
        self._small = SmallTensors(self.eps, self.columns)
        self._lists = NativeLists(self.eps, self.columns)
        self._num_rows = 0
        self._where: dict[Any, tuple[list[int], list[int]]] = {}
        """Where rows are computed: their numbers in the step, and there."""
        self._sparse: list[tuple[int, int]] = []
        self._compared: list[tuple[Name, int, int]] = []
        """Rows of tensors that were reduced twice."""
        self._again: dict[str, dict[Any, Sequence[int]]] = {}
        self._numbers: list[RowNumber] = []

    def number(self, tensor: torch.Tensor, factor: torch.Tensor | None) -> RowNumber | None:
        """Reduce one number on a device, times another one; None if that takes a copy of its own.

        It is there once the step has ended.
        """
        if not (tensor.is_cuda and self._has_triton and tensor.numel() == 1 and has_plain_memory(tensor)):
            return None
        with torch.no_grad(), unseen():
            row = self.observe(tensor if factor is None else tensor.detach().float() * factor)
        if row is None:
            return None
        found = RowNumber(row)
        self._numbers.append(found)
        return found

    def observe(self, tensor: torch.Tensor, scale: torch.Tensor | None = None, name: Name | None = None) -> int | None:
        """Reduce one tensor, divided by `scale`; return its row within the step, or None if it cannot be read.

        With a `name`, the quantity and the target, it is reduced again later, to learn whether it is steady.
        """
        if has_plain_memory(tensor):
            size = tensor.numel()
            if tensor.is_cuda and self._has_triton:
                if not torch._C._cuda_isCurrentStreamCapturing():
                    with self._lock:
                        device_rows = self._device_rows(tensor)
                        self.device_seconds += device_rows.seconds(size * tensor.itemsize)
                        row = self._row(device_rows, device_rows.observe(tensor, size, _on(scale, tensor)))
                        self._follow(tensor, row, name, device_rows)
                        return row
            elif tensor.is_cpu and (size <= SMALL or native.library is not None):
                with self._lock:
                    row = self._place_on_host(tensor, size, 1.0 if scale is None else float(scale))
                    self._follow(tensor, row, name, None)
                    return row
        with torch.no_grad(), unseen(), self._lock:
            elements, num_elements = stored_elements(tensor)
            return None if elements is None else self._place(elements, num_elements, scale)

    def is_steady(self, name: Name) -> bool:
        """Whether tensors of this name keep their values until the end of their pass."""
        return self._steady.is_steady(name)

    def _follow(self, tensor: torch.Tensor, row: int, name: Name | None, device_rows: Any) -> None:
        if name is None or not self._steady.is_unknown(name) or tensor.nbytes > room.of_one:
            return
        stream = 0 if device_rows is None else device_rows.stream()
        followed = self._steady.followed
        if followed is None or not followed.takes(device_rows, stream):
            self._reduce_followed()
            followed = self._steady.followed = Followed(device_rows, stream)
        with torch.no_grad(), unseen():
            followed.add(tensor, row, name)

    def _reduce_followed(self) -> None:
        """Reduce tensors that were kept for a while again, to learn whether their values stayed the same."""
        followed, self._steady.followed = self._steady.followed, None
        if followed is None:
            return
        for name in followed.drop_modified():
            self._steady.learn(name, False)
        tensors, device_rows = followed.tensors, followed.device_rows
        if not tensors:
            return
        # As before, one by one: another kernel adds in another order.
        if device_rows is None:
            again = [self._place_on_host(tensor, tensor.numel(), 1.0) for tensor in tensors]
        else:
            with device_rows.on(followed.stream):
                again = [
                    self._row(device_rows, device_rows.observe(tensor, tensor.numel(), None)) for tensor in tensors
                ]
        self._compared += zip(followed.names, followed.rows, again, strict=True)

    def observe_many(
        self, tensors: list[torch.Tensor], scale: torch.Tensor | None = None, again: str = ""
    ) -> Sequence[int | None]:
        """Reduce a list at once, on CUDA in one launch per dtype.

        A list with the same name `again` and sizes replaces the earlier rows: only a step's last backward counts.
        """
        with torch.no_grad(), unseen(), self._lock:
            if (placed := self._place_plain(tensors, scale, again)) is not None:
                return placed
            if (read := self._lists.place(tensors, scale, again, self._num_rows)) is not None:
                self._num_rows = max(self._num_rows, read.stop)
                return read
            placed_small, others = self._place_small(tensors, scale, again)
            if not others:
                return placed_small
            rows = list(placed_small)
            on_cuda: dict[int, torch.Tensor] = {}
            for index in others:
                elements, num_elements = stored_elements(tensors[index])
                if elements is None:
                    continue
                if hasattr(self._device_rows(elements), "observe_many") and num_elements == elements.numel():
                    on_cuda[index] = elements
                else:
                    rows[index] = self._place(elements, num_elements, scale)
            if on_cuda:
                flats = list(on_cuda.values())
                addresses = tuple(map(torch.Tensor.data_ptr, flats))
                numbers = self._place_groups(groups_of(flats), flats, addresses, scale, again)
                for index, number in zip(on_cuda, numbers, strict=True):
                    rows[index] = number
            return rows

    def _place_plain(self, tensors: list[torch.Tensor], scale: torch.Tensor | None, again: str) -> Sequence[int] | None:
        """Reduce tensors that are plain blocks of numbers on one CUDA device; None if one of them is not.

        Almost every list is one: it is recognised without a Python call per tensor.
        """
        if not (self._has_triton and tensors and tensors[0].is_cuda) or is_inside_transform():
            return None
        try:
            addresses = tuple(map(torch.Tensor.data_ptr, tensors))
        except RuntimeError:
            return None  # a sparse one
        known = self._plain.get(again)
        if known is None or known.addresses != addresses:
            known = PlainList.of(tensors, addresses, known)
            if known is None:
                return None
            self._plain[again] = known
        if torch.cuda.is_current_stream_capturing():
            return None
        return self._place_groups(known.groups, tensors, addresses, scale, again)

    def _place_groups(
        self,
        groups: list[Group],
        tensors: list[torch.Tensor],
        addresses: tuple[int, ...],
        scale: torch.Tensor | None,
        again: str,
    ) -> Sequence[int]:
        """Reduce tensors without gaps, in one launch per device and dtype; return the row of each."""
        earlier = self._again.get(again, {})
        placed = self._again[again] = {}
        if len(groups) == 1:
            return self._place_group(tensors[0], addresses, groups[0].sizes, scale, again, earlier, placed)
        rows = [0] * len(tensors)
        for members, sizes in groups:
            own = tuple([addresses[at] for at in members])
            first = tensors[members[0]]
            for at, row in zip(
                members, self._place_group(first, own, sizes, scale, again, earlier, placed), strict=True
            ):
                rows[at] = row
        return rows

    def _place_group(
        self,
        sample: torch.Tensor,
        addresses: tuple[int, ...],
        sizes: tuple[int, ...],
        scale: torch.Tensor | None,
        again: str,
        earlier: Mapping[Any, Sequence[int]],
        placed: dict[Any, Sequence[int]],
    ) -> Sequence[int]:
        """Reduce tensors of one device and dtype, that of `sample`, into new rows or those of `earlier`."""
        device_rows = self._device_rows(sample)
        kind = id(device_rows), sample.dtype
        before = earlier.get(kind) if again else None
        if before is not None and not device_rows.can_repeat(before, sizes):
            before = None
        name = f"{again}/{sample.dtype}"
        numbers = device_rows.observe_many(sample, addresses, sizes, _on(scale, sample), name, before)
        self.device_seconds += device_rows.seconds(sum(sizes) * sample.element_size())
        placed[kind] = numbers
        rows = range(self._num_rows, self._num_rows + len(sizes))
        known_rows, places = self._where.setdefault(device_rows, ([], []))
        known_rows += rows
        places += numbers
        self._num_rows += len(sizes)
        return rows

    def _place_small(
        self, tensors: list[torch.Tensor], scale: torch.Tensor | None, again: str
    ) -> tuple[Sequence[int | None], Sequence[int]]:
        """Copy the small ones together; return the row of each, and which tensors are still to be reduced."""
        rows: list[int | None] = [None] * len(tensors)
        if len(tensors) < LEAST_IN_LIST or is_inside_transform():
            return rows, range(len(tensors))
        small, sizes = tensors, small_sizes(tensors)
        chosen: Sequence[int] = range(len(tensors))
        if sizes is None:
            chosen = [index for index, tensor in enumerate(tensors) if is_small(tensor)]
            small = tensors if len(chosen) == len(tensors) else [tensors[index] for index in chosen]
            sizes = list(map(torch.Tensor.numel, small))
        if len(chosen) < LEAST_IN_LIST:
            return rows, range(len(tensors))
        placed = self._small.add_list(small, sizes, self._num_rows, 1.0 if scale is None else float(scale), again)
        if placed is None:
            placed = range(self._num_rows, self._num_rows + len(small))
            self._num_rows += len(small)
        if small is tensors:
            return placed, ()
        for index, number in zip(chosen, placed, strict=True):
            rows[index] = number
        done = set(chosen)
        return rows, [index for index in range(len(tensors)) if index not in done]

    def at_once(self, tensors: list[torch.Tensor]) -> cpu.Row | None:
        """Return the merged Summary of dense CPU tensors; None if one of them is elsewhere. Any thread, no lock."""
        with torch.no_grad(), unseen():
            parts = [local_part(tensor) for tensor in tensors]
            rows = [
                cpu.summarise(flat(part), self.eps, self.columns)
                for part in parts
                if part is not None and part.is_cpu and part.layout is torch.strided
            ]
        if not rows or len(rows) != len(parts):
            return None
        return rows[0] if len(rows) == 1 else merge_all(np.array(rows, dtype=np.float64))[0].tolist()

    def _place(self, elements: torch.Tensor, num_elements: int, scale: torch.Tensor | None) -> int:
        device_rows = self._device_rows(elements)
        if device_rows is None:
            factor = 1.0 if scale is None else float(scale)
            if elements.numel() <= SMALL and has_plain_memory(elements):
                number = self._place_on_host(elements, elements.numel(), factor)
            else:
                row = cpu.summarise(elements, self.eps * factor, self.columns)
                number = self._keep(cpu.divide(row, factor) if factor != 1.0 else row)
        else:
            if elements.dtype is torch.bool:
                elements = elements.view(torch.uint8)
            number = self._row(device_rows, device_rows.observe(elements, elements.numel(), _on(scale, elements)))
            self.device_seconds += device_rows.seconds(elements.numel() * elements.element_size())
        if num_elements != elements.numel():
            self._sparse.append((number, num_elements))
        return number

    def _place_on_host(self, tensor: torch.Tensor, size: int, factor: float) -> int:
        """Reduce a tensor with plain memory at once, or copy it to be reduced with others."""
        found = summary(tensor, self.eps, self.columns, factor)
        if found is not None:
            return self._keep(found)
        row, self._num_rows = self._num_rows, self._num_rows + 1
        self._small.add(tensor, size, row, factor)
        return row

    def _keep(self, row: cpu.Row) -> int:
        self._host.append(row)
        return self._row(None, len(self._host) - 1)

    def _row(self, device_rows: Any, number: int) -> int:
        numbers, places = self._where.setdefault(device_rows, ([], []))
        numbers.append(self._num_rows)
        places.append(number)
        self._num_rows += 1
        return self._num_rows - 1

    def _device_rows(self, elements: torch.Tensor) -> Any:
        """Return where this tensor is reduced: None is the host."""
        if elements.is_cpu:
            return None
        device = elements.device
        kind = "triton" if elements.is_cuda and self._has_triton and not elements.is_complex() else "aten"
        found = self._on_device.get((device, kind))
        if found is None:
            if kind == "triton":
                from vario.backends.torch.reduce.cuda import CudaRows

                found = CudaRows(device, self.eps, self.columns)
            else:
                found = AtenRows(device, self.eps)
            self._on_device[device, kind] = found
        return found

    plain_number = staticmethod(plain_number)
    why_skipped = staticmethod(why_without_numbers)

    def collect(self, keep: bool = False) -> Callable[[], Table]:
        """End the step, or `keep` it going: start the copies; the result puts all rows into one table."""
        with self._lock:
            if not self._num_rows and not self._on_device:
                return _no_rows
            if not keep:
                self._reduce_followed()
            host, small, sparse = list(self._host), self._small.close(), list(self._sparse)
            lists = list(self._lists.tables)
            where = {made: (list(numbers), list(places)) for made, (numbers, places) in self._where.items()}
            num_rows, compared = self._num_rows, [] if keep else list(self._compared)
            fetches = [(rows, rows.collect(keep)) for rows in self._on_device.values()]
            numbers = () if keep else tuple(self._numbers)
            if not keep:
                self._begin()

        def build() -> Table:
            tables: dict[Any, Table] = {rows: take() for rows, take in fetches if take is not None}
            tables[None] = np.array(host, dtype=np.float64).reshape(-1, len(COLUMNS))
            table = empty_table(num_rows)
            for rows, own in lists:
                table[rows.start : rows.stop] = own
            for batch in small:
                where_to = slice(batch.rows.start, batch.rows.stop) if isinstance(batch.rows, range) else batch.rows
                table[where_to] = batch.table(self.eps, self.columns)
            for made, (numbers, places) in where.items():
                table[numbers] = tables[made][places]
            for name, row, again in compared:
                self._steady.learn(name, np.array_equal(table[row], table[again], equal_nan=True))
            for index, num_elements in sparse:
                _add_implicit_zeros(table[index], num_elements)
            return table

        known: list[Table] = []

        def fetch() -> Table:
            if not known:
                known.append(build())
            return known[0]

        for number in numbers:
            number.fetch = fetch
        return fetch


def _no_rows() -> Table:
    return empty_table(0)


def _on(scale: torch.Tensor | None, elements: torch.Tensor) -> torch.Tensor | None:
    """Return the scale on the device of the elements."""
    return None if scale is None else scale.to(elements.device, non_blocking=True)


def _add_implicit_zeros(row: Table, num_elements: int) -> None:
    """Turn the Summary of a sparse tensor's stored values into that of the whole tensor."""
    row[ZEROS] += num_elements - row[COUNT]
    if row[NANS] < row[COUNT] or not row[COUNT]:
        row[MIN], row[MAX] = np.fmin(row[MIN], 0.0), np.fmax(row[MAX], 0.0)
    else:
        row[MIN] = row[MAX] = 0.0
    row[COUNT] = num_elements
