"""Summaries of small CPU tensors, many at once and off the training thread.

A dozen operations for each of a few hundred small tensors take longer than the training step they belong to. Here the
training thread only copies them, end to end. Whoever fetches the step's numbers reduces each batch of them: one
operation per column of all their Summaries, over a stretch that fits the cache. As for single small tensors, everything
is reduced in float64.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from vario.core.records import COUNT, INFS, MAX, MIN, NANS, SUM, SUM_SQUARES, ZEROS, Table, empty_table

SMALL = 32_768
"""Elements of the largest tensor that is copied."""
LEAST_IN_LIST = 4
"""Lists of fewer tensors are copied one by one."""
BLOCK = 1 << 16
"""Elements of a block of memory that single tensors are copied into."""
STRETCH = 1 << 15
"""Elements that are reduced together: 256 KiB of float64."""
MOST_WAITING = 1 << 22
"""Elements that may wait; more are reduced at once."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_REAL = frozenset({torch.float32, torch.bfloat16, torch.float16, torch.float64})

Rows = list[int] | range


def is_small(tensor: torch.Tensor) -> bool:
    """Whether a tensor is reduced with others: real numbers, dense, on the CPU, few of them but not none."""
    return (
        type(tensor) in _PLAIN
        and tensor.is_cpu
        and tensor.dtype in _REAL
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and 0 < tensor.numel() <= SMALL
    )


class Batch:
    """Small tensors that lie end to end, and the rows of the step that their Summaries become."""

    def __init__(self, flat: torch.Tensor, sizes: list[int], rows: Rows, scale: float) -> None:
        self.flat: torch.Tensor | None = flat
        self.sizes = sizes
        self.rows = rows
        self.scale = scale
        """What the elements are multiplied by."""
        self._table: Table | None = None

    def replace(self, flat: torch.Tensor) -> None:
        """Take other elements of the same sizes."""
        self.flat, self._table = flat, None

    def table(self, eps: float, columns: frozenset[str]) -> Table:
        """The Summary of each tensor; the elements are let go."""
        flat = self.flat
        if flat is not None:
            table = _summarise(flat, self.sizes, eps * self.scale, columns)
            if self.scale not in (0.0, 1.0):
                table[:, [SUM, SUM_SQUARES, MIN, MAX]] /= (self.scale, self.scale**2, self.scale, self.scale)
            self._table, self.flat = table, None
        assert self._table is not None
        return self._table


class SmallTensors:
    """Copies of the small tensors of one step. The caller sees to it that one thread adds at a time."""

    def __init__(self, eps: float, columns: frozenset[str]) -> None:
        self._eps, self._columns = eps, columns
        self.batches: list[Batch] = []
        self._lists: dict[str, list[Batch]] = {}
        self._open: dict[torch.dtype, tuple[Batch, torch.Tensor]] = {}
        self._num_waiting = 0

    def add(self, tensor: torch.Tensor, row: int, scale: float) -> None:
        """Copy one tensor, whose Summary becomes that row."""
        dtype = torch.float64 if tensor.dtype is torch.float64 else torch.float32
        size = tensor.numel()
        batch, room = self._open.get(dtype, (None, None))
        if batch is None or room is None or room.numel() < size or batch.scale != scale:
            # The script may have set another default device, and what is made in inference mode stays in it.
            with torch.inference_mode(False):
                room = torch.empty(BLOCK, dtype=dtype, device="cpu")
            batch = self._keep(Batch(room, [], [], scale), BLOCK)
        room[:size].copy_(tensor.detach().reshape(-1))
        batch.sizes.append(size)
        batch.rows.append(row)  # type: ignore[union-attr]  # an open one has a list
        self._open[dtype] = batch, room[size:]

    def add_list(self, tensors: Sequence[torch.Tensor], first_row: int, scale: float, again: str) -> range | None:
        """Copy a list, whose Summaries become the rows from that one on.

        A list under the same name `again` and of the same sizes takes the place of the earlier one: its rows are
        given back.
        """
        sizes = [tensor.numel() for tensor in tensors]
        parts = list(_of_one_dtype(tensors))
        earlier = self._lists.get(again, [])
        is_same = len(earlier) == len(parts) and all(
            batch.sizes == sizes[first:last] and batch.scale == scale
            for batch, (first, last) in zip(earlier, parts, strict=True)
        )
        flats = [_end_to_end(tensors[first:last]) for first, last in parts]
        if again and is_same and parts:
            for batch, flat in zip(earlier, flats, strict=True):
                batch.replace(flat)
            return range(earlier[0].rows[0], earlier[-1].rows[-1] + 1)
        self._lists[again] = [
            self._keep(Batch(flat, sizes[first:last], range(first_row + first, first_row + last), scale), len(flat))
            for flat, (first, last) in zip(flats, parts, strict=True)
        ]
        return None

    def close(self) -> list[Batch]:
        """All batches; nothing is added to them any more."""
        self._open.clear()
        return list(self.batches)

    def _keep(self, batch: Batch, num_elements: int) -> Batch:
        self._num_waiting += num_elements
        if self._num_waiting > MOST_WAITING:
            for waiting in self.close():
                waiting.table(self._eps, self._columns)
            self._num_waiting = num_elements
        self.batches.append(batch)
        return batch


def _of_one_dtype(tensors: Sequence[torch.Tensor]) -> Iterator[tuple[int, int]]:
    """Where the neighbours of one dtype begin and end."""
    changes = (at for at, (one, other) in enumerate(pairwise(tensors), 1) if one.dtype is not other.dtype)
    return pairwise([0, *changes, len(tensors)])


def _end_to_end(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    # Of a single tensor the second would be a view, which changes with it.
    if len(tensors) == 1:
        return tensors[0].detach().reshape(-1).clone()
    return torch._C._nn.flatten_dense_tensors(list(tensors)).detach()


class _Scratch(threading.local):
    """Memory for the numbers of one stretch, for each thread that reduces."""

    def __init__(self) -> None:
        self.values = np.empty(SMALL + STRETCH)
        self.others = np.empty(SMALL + STRETCH)
        self.mask = np.empty(SMALL + STRETCH, bool)


_scratch = _Scratch()


def _summarise(flat: torch.Tensor, sizes: Sequence[int], eps: float, columns: frozenset[str]) -> Table:
    """The Summary of each of the tensors that lie end to end."""
    counts = np.array(sizes, np.int64)
    ends = np.cumsum(counts)
    table = empty_table(len(counts))
    table[:, COUNT] = counts
    readable = flat.numpy() if flat.dtype in (torch.float32, torch.float64) else flat.float().numpy()
    for first, last in _stretches(ends):
        begin, end = ends[first] - counts[first], ends[last - 1]
        values = _scratch.values[: end - begin]
        values[:] = readable[begin:end]
        with np.errstate(all="ignore"):
            _fill(table[first:last], values, ends[first:last] - counts[first:last] - begin, eps, columns)
    return table


def _stretches(ends: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """As many neighbours as are reduced together; a stretch is at most one tensor longer than it should be."""
    first = 0
    while first < len(ends):
        begin = 0 if first == 0 else ends[first - 1]
        last = int(np.searchsorted(ends, begin + STRETCH)) + 1
        yield first, min(last, len(ends))
        first = last


def _fill(
    table: Table, values: npt.NDArray[np.float64], starts: npt.NDArray[np.int64], eps: float, columns: frozenset[str]
) -> None:
    """Reduce each tensor's elements into its row."""
    others, mask = _scratch.others[: len(values)], _scratch.mask[: len(values)]
    table[:, SUM] = np.add.reduceat(values, starts)
    if "sum_squares" in columns:
        table[:, SUM_SQUARES] = np.add.reduceat(np.multiply(values, values, out=others), starts)
    if "min" in columns or "max" in columns:
        # These pass over NaN, and leave it where there is nothing else.
        table[:, MIN] = np.fmin.reduceat(values, starts)
        table[:, MAX] = np.fmax.reduceat(values, starts)
    if "zeros" in columns:
        np.less(np.abs(values, out=others), eps, out=mask) if eps else np.equal(values, 0, out=mask)
        if mask.any():
            table[:, ZEROS] = np.add.reduceat(mask, starts, dtype=np.float64)
    if not np.isfinite(table[:, SUM] + table[:, SUM_SQUARES]).all():
        table[:, NANS] = np.add.reduceat(np.isnan(values, out=mask), starts, dtype=np.float64)
        table[:, INFS] = np.add.reduceat(np.isinf(values, out=mask), starts, dtype=np.float64)
