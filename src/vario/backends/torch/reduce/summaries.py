"""Summaries of torch tensors, wherever they live: each device reduces its own, one table comes out."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from vario.backends.torch.reduce import cpu
from vario.backends.torch.reduce.aten import AtenRows
from vario.backends.torch.reduce.small_tensors import LEAST_IN_LIST, SmallTensors, is_small
from vario.backends.torch.reduce.tensors import flat, is_inside_transform, local_part, unseen
from vario.core.records import COLUMNS, COUNT, MAX, MIN, NANS, ZEROS, Table, empty_table, merge_all


class TorchSummaries:
    """The rows of one step: small CPU tensors are copied, larger ones reduced at once, a device does it in its time."""

    def __init__(self, eps: float, columns: frozenset[str]) -> None:
        self.eps = eps
        self.columns = columns
        self._lock = threading.Lock()
        self._on_device: dict[tuple[torch.device, str], Any] = {}
        self._has_triton = importlib.util.find_spec("triton") is not None
        self._begin()

    def _begin(self) -> None:
        self._host: list[cpu.Row] = []
        self._small = SmallTensors(self.eps, self.columns)
        self._num_rows = 0
        self._where: dict[Any, tuple[list[int], list[int]]] = {}
        """Where rows are made: their numbers in the step, and there."""
        self._sparse: list[tuple[int, int]] = []
        self._again: dict[str, dict[Any, list[int]]] = {}

    def observe(self, tensor: torch.Tensor, scale: torch.Tensor | None = None) -> int | None:
        """Reduce one tensor, divided by `scale`; its row within the step, or None when it has no numbers."""
        with torch.no_grad(), unseen(), self._lock:
            if is_small(tensor) and not is_inside_transform():
                self._small.add(tensor, self._num_rows, 1.0 if scale is None else float(scale))
                self._num_rows += 1
                return self._num_rows - 1
            elements, num_elements = self._elements(tensor)
            if elements is None:
                return None
            return self._place(elements, num_elements, scale)

    def observe_many(
        self, tensors: list[torch.Tensor], scale: torch.Tensor | None = None, again: str = ""
    ) -> list[int | None]:
        """Reduce a list at once, on CUDA in one launch per dtype.

        A list under the same name `again`, of the same sizes, takes the rows of the earlier one in this step: only
        the last backward of a step leaves its gradients.
        """
        with torch.no_grad(), unseen(), self._lock:
            rows, others = self._place_small(tensors, scale, again)
            groups: dict[tuple[Any, torch.dtype], list[tuple[int, torch.Tensor]]] = {}
            for index in others:
                elements, num_elements = self._elements(tensors[index])
                if elements is None:
                    continue
                device_rows = self._device_rows(elements)
                if hasattr(device_rows, "observe_many") and num_elements == elements.numel():
                    groups.setdefault((device_rows, elements.dtype), []).append((index, elements))
                else:
                    rows[index] = self._place(elements, num_elements, scale)
            earlier = self._again.get(again, {})
            placed: dict[Any, list[int]] = {}
            for (device_rows, dtype), members in groups.items():
                flats = [elements for _, elements in members]
                name = f"{again}/{dtype}"
                before = earlier.get((id(device_rows), dtype))
                if before is not None and not device_rows.can_repeat(before, flats):
                    before = None
                device_numbers = device_rows.observe_many(flats, _on(scale, flats[0]), name, before)
                placed[id(device_rows), dtype] = device_numbers
                for (index, _), number in zip(members, device_numbers, strict=True):
                    rows[index] = self._row(device_rows, number)
            if again:
                self._again[again] = placed
            return rows

    def _place_small(
        self, tensors: list[torch.Tensor], scale: torch.Tensor | None, again: str
    ) -> tuple[list[int | None], Sequence[int]]:
        """Copy the small ones together: the row of each, and which tensors are still to be reduced."""
        rows: list[int | None] = [None] * len(tensors)
        if len(tensors) < LEAST_IN_LIST or is_inside_transform():
            return rows, range(len(tensors))
        chosen = [index for index, tensor in enumerate(tensors) if is_small(tensor)]
        if len(chosen) < LEAST_IN_LIST:
            return rows, range(len(tensors))
        small = tensors if len(chosen) == len(tensors) else [tensors[index] for index in chosen]
        placed = self._small.add_list(small, self._num_rows, 1.0 if scale is None else float(scale), again)
        if placed is None:
            placed = range(self._num_rows, self._num_rows + len(small))
            self._num_rows += len(small)
        if small is tensors:
            return list(placed), ()
        for index, number in zip(chosen, placed, strict=True):
            rows[index] = number
        done = set(chosen)
        return rows, [index for index in range(len(tensors)) if index not in done]

    def at_once(self, tensors: list[torch.Tensor]) -> cpu.Row | None:
        """The Summary of dense CPU tensors, merged; None where one of them is elsewhere. Any thread, and no lock."""
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

    def _elements(self, tensor: torch.Tensor) -> tuple[torch.Tensor | None, int]:
        """The stored elements, laid flat, and how many elements the tensor has; a sparse tensor stores fewer."""
        part = local_part(tensor)
        if part is None:
            return None, 0
        if part.layout is torch.strided:
            return flat(part), part.numel()
        if part.layout is torch.sparse_coo:
            if not part.is_coalesced():
                if part.device.type != "cpu":
                    return None, 0  # coalescing on a device waits for it
                part = part.coalesce()
            return flat(part.values()), part.numel()
        if part.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
            return flat(part.values()), part.numel()
        return None, 0

    def _place(self, elements: torch.Tensor, num_elements: int, scale: torch.Tensor | None) -> int:
        device_rows = self._device_rows(elements)
        if device_rows is None:
            factor = 1.0 if scale is None else float(scale)
            row = cpu.summarise(elements, self.eps * factor, self.columns)
            self._host.append(cpu.divide(row, factor) if factor != 1.0 else row)
            number = self._row(None, len(self._host) - 1)
        else:
            if elements.dtype is torch.bool:
                elements = elements.view(torch.uint8)
            number = self._row(device_rows, device_rows.observe(elements, _on(scale, elements)))
        if num_elements != elements.numel():
            self._sparse.append((number, num_elements))
        return number

    def _row(self, device_rows: Any, number: int) -> int:
        numbers, places = self._where.setdefault(device_rows, ([], []))
        numbers.append(self._num_rows)
        places.append(number)
        self._num_rows += 1
        return self._num_rows - 1

    def _device_rows(self, elements: torch.Tensor) -> Any:
        """Where this tensor is reduced: None stands for the host."""
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

    def collect(self, keep: bool = False) -> Callable[[], Table]:
        """End the step, or `keep` it going: start the copies; the result puts all rows into one table."""
        with self._lock:
            host, small, sparse = list(self._host), self._small.close(), list(self._sparse)
            where = {made: (list(numbers), list(places)) for made, (numbers, places) in self._where.items()}
            num_rows = self._num_rows
            fetches = [(rows, rows.collect(keep)) for rows in self._on_device.values()]
            if not keep:
                self._begin()

        def fetch() -> Table:
            tables: dict[Any, Table] = {rows: take() for rows, take in fetches if take is not None}
            tables[None] = np.array(host, dtype=np.float64).reshape(-1, len(COLUMNS))
            table = empty_table(num_rows)
            for batch in small:
                where_to = slice(batch.rows.start, batch.rows.stop) if isinstance(batch.rows, range) else batch.rows
                table[where_to] = batch.table(self.eps, self.columns)
            for made, (numbers, places) in where.items():
                table[numbers] = tables[made][places]
            for index, num_elements in sparse:
                _add_implicit_zeros(table[index], num_elements)
            return table

        return fetch


def _on(scale: torch.Tensor | None, elements: torch.Tensor) -> torch.Tensor | None:
    """The scale where the elements are."""
    return None if scale is None else scale.to(elements.device, non_blocking=True)


def _add_implicit_zeros(row: Table, num_elements: int) -> None:
    """Make the Summary of a sparse tensor's stored values that of the whole tensor."""
    row[ZEROS] += num_elements - row[COUNT]
    if row[NANS] < row[COUNT] or not row[COUNT]:
        row[MIN], row[MAX] = np.fmin(row[MIN], 0.0), np.fmax(row[MAX], 0.0)
    else:
        row[MIN] = row[MAX] = 0.0
    row[COUNT] = num_elements
