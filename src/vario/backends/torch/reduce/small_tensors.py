"""Summaries of small CPU tensors, many at once and off the training thread.

A dozen operations for each of a few hundred small tensors take longer than the training step. Here the training thread
only copies them, end to end. The thread that fetches the step's numbers reduces each batch: one operation per column of
all their Summaries, over a chunk that fits the cache. As for single small tensors, everything is reduced in float64.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import attrgetter

import numpy as np
import numpy.typing as npt
import torch

from vario.backends.torch.reduce import memory_reads
from vario.backends.torch.reduce.memory_reads import PLAIN, REAL, are_plain
from vario.core.records import COUNT, INFS, MAX, MIN, NANS, SUM, SUM_SQUARES, ZEROS, Table, empty_table

SMALL = 32_768
"""Elements of the largest tensor that is copied."""
LEAST_IN_LIST = 4
"""Lists of fewer tensors are copied one by one."""
BLOCK = 1 << 16
"""Elements of a block of memory for single tensors."""
CHUNK = 1 << 15
"""Elements that are reduced together: 256 KiB of float64."""
MOST_WAITING = 1 << 22
"""The most elements that may wait; beyond that they are reduced at once."""

MOST_KEPT, MOST_KINDS_KEPT, MOST_KEPT_BYTES = 2, 8, 1 << 23
"""Memory of earlier steps that is kept for later ones: blocks of one size, sizes, and bytes of a block."""

_dtype = attrgetter("dtype")

Rows = list[int] | range


def is_small(tensor: torch.Tensor) -> bool:
    """Whether a tensor is reduced together with others: real, dense, on the CPU, small and not empty."""
    return (
        type(tensor) in PLAIN
        and tensor.is_cpu
        and tensor.dtype in REAL
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and 0 < tensor.numel() <= SMALL
    )


def small_sizes(tensors: Sequence[torch.Tensor]) -> list[int] | None:
    """Return the sizes of many tensors, if all of them are small."""
    if not are_plain(tensors):
        return None
    sizes = list(map(torch.Tensor.numel, tensors))
    return sizes if min(sizes) > 0 and max(sizes) <= SMALL else None


class _Memory:
    """Blocks of memory that steps use in turn: the first use of new memory takes longer than copying into it.

    Without a lock, which a forked process might inherit: operations on one list are atomic.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[torch.dtype, int], list[torch.Tensor]] = {}

    def take(self, dtype: torch.dtype, size: int) -> torch.Tensor:
        """Return memory for so many elements; any thread."""
        with contextlib.suppress(KeyError, IndexError):
            return self._free[dtype, size].pop()
        # The script may have set another default device, and tensors made in inference mode stay in it.
        with torch.inference_mode(False):
            return torch.empty(size, dtype=dtype, device="cpu")

    def give_back(self, flat: torch.Tensor) -> None:
        """Let a later step use this memory; any thread."""
        if flat.nbytes > MOST_KEPT_BYTES:
            return
        if len(self._free) > MOST_KINDS_KEPT:
            self._free = {}
        free = self._free.setdefault((flat.dtype, len(flat)), [])
        if len(free) < MOST_KEPT:
            free.append(flat)


blocks = _Memory()


class Batch:
    """Small tensors end to end, and the rows of the step for their Summaries."""

    def __init__(self, flat: torch.Tensor, sizes: list[int], rows: Rows, scale: float) -> None:
        self.flat: torch.Tensor | None = flat
        self.sizes = sizes
        self.rows = rows
        self.scale = scale
        """What the elements are multiplied by."""
        self._table: Table | None = None

    def replace(self, flat: torch.Tensor) -> None:
        """Replace the elements by others of the same sizes."""
        if self.flat is not None:
            blocks.give_back(self.flat)
        self.flat, self._table = flat, None

    def table(self, eps: float, columns: frozenset[str]) -> Table:
        """Return the Summary of each tensor; the elements are freed."""
        flat = self.flat
        if flat is not None:
            table = _summarise(flat, self.sizes, eps * self.scale, columns)
            if self.scale not in (0.0, 1.0):
                table[:, [SUM, SUM_SQUARES, MIN, MAX]] /= (self.scale, self.scale**2, self.scale, self.scale)
            self._table, self.flat = table, None
            blocks.give_back(flat)
        assert self._table is not None
        return self._table


@dataclass
class _Block:
    """Memory of a batch that is being filled: where it is free, and how many elements fit there."""

    batch: Batch
    address: int
    room: int


class SmallTensors:
    """Copies of the small tensors of one step. The caller makes sure that one thread adds at a time."""

    def __init__(self, eps: float, columns: frozenset[str]) -> None:
        self._eps, self._columns = eps, columns
        self.batches: list[Batch] = []
        self._lists: dict[str, list[Batch]] = {}
        self._open: dict[torch.dtype, _Block] = {}
        self._num_waiting = 0

    def add(self, tensor: torch.Tensor, size: int, row: int, scale: float) -> None:
        """Copy one tensor with plain memory, whose Summary becomes that row."""
        dtype = tensor.dtype
        block = self._open.get(dtype)
        if block is None or block.room < size or block.batch.scale != scale:
            memory = blocks.take(dtype, BLOCK)
            batch = self._keep(Batch(memory, [], [], scale), BLOCK)
            block = self._open[dtype] = _Block(batch, memory.data_ptr(), BLOCK)
        num_bytes = size * dtype.itemsize
        ctypes.memmove(block.address, tensor.data_ptr(), num_bytes)
        block.address += num_bytes
        block.room -= size
        block.batch.sizes.append(size)
        block.batch.rows.append(row)  # type: ignore[union-attr]  # an open one has a list

    def add_list(
        self, tensors: Sequence[torch.Tensor], sizes: list[int], first_row: int, scale: float, again: str
    ) -> range | None:
        """Copy a list, whose Summaries become the rows from `first_row` on.

        A list with the same name `again` and the same sizes replaces the earlier one, whose rows are returned.
        """
        parts = list(_of_one_dtype(tensors))
        earlier = self._lists.get(again, [])
        is_same = len(earlier) == len(parts) and all(
            batch.sizes == sizes[first:last] and batch.scale == scale
            for batch, (first, last) in zip(earlier, parts, strict=True)
        )
        flats = [end_to_end(tensors[first:last], sizes[first:last]) for first, last in parts]
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
        """Return all batches; nothing is added to them any more."""
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
    """Yield where runs of tensors with one dtype begin and end."""
    dtypes = list(map(_dtype, tensors))
    if len(set(dtypes)) == 1:
        return iter([(0, len(tensors))])
    changes = (at for at, (one, other) in enumerate(pairwise(dtypes), 1) if one is not other)
    return pairwise([0, *changes, len(tensors)])


def end_to_end(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
    """Return a copy of the elements of small tensors of one dtype and these sizes, end to end."""
    if (places := memory_reads.places_of(tensors, sizes)) is not None:
        return memory_reads.read(places, tensors[0].dtype)
    if memory_reads.have_plain_memory(tensors):
        flat = blocks.take(tensors[0].dtype, sum(sizes))
        num_bytes = [size * flat.itemsize for size in sizes]
        copies = accumulate(num_bytes, initial=flat.data_ptr())
        deque(map(ctypes.memmove, copies, map(torch.Tensor.data_ptr, tensors), num_bytes), maxlen=0)
        return flat
    # For a single tensor the second would be a view, which changes with it.
    if len(tensors) == 1:
        return tensors[0].detach().reshape(-1).clone()
    return torch._C._nn.flatten_dense_tensors(list(tensors)).detach()


class _Scratch(threading.local):
    """Memory for the numbers of one chunk, per reducing thread."""

    def __init__(self) -> None:
        self.values = np.empty(SMALL + CHUNK)
        self.others = np.empty(SMALL + CHUNK)
        self.mask = np.empty(SMALL + CHUNK, bool)


_scratch = _Scratch()


def _summarise(flat: torch.Tensor, sizes: Sequence[int], eps: float, columns: frozenset[str]) -> Table:
    """Return the Summary of each of the tensors, which are end to end."""
    counts = np.array(sizes, np.int64)
    ends = np.cumsum(counts)
    table = empty_table(len(counts))
    table[:, COUNT] = counts
    readable = flat.numpy() if flat.dtype in (torch.float32, torch.float64) else flat.float().numpy()
    for first, last in _chunks(ends):
        begin, end = ends[first] - counts[first], ends[last - 1]
        values = _scratch.values[: end - begin]
        values[:] = readable[begin:end]
        with np.errstate(all="ignore"):
            _fill(table[first:last], values, ends[first:last] - counts[first:last] - begin, eps, columns)
    return table


def _chunks(ends: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield as many neighbours as are reduced together; a chunk is at most one tensor too long."""
    first = 0
    while first < len(ends):
        begin = 0 if first == 0 else ends[first - 1]
        last = int(np.searchsorted(ends, begin + CHUNK)) + 1
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
        # These ignore NaN, and return it if there is nothing else.
        table[:, MIN] = np.fmin.reduceat(values, starts)
        table[:, MAX] = np.fmax.reduceat(values, starts)
    if "zeros" in columns:
        np.less(np.abs(values, out=others), eps, out=mask) if eps else np.equal(values, 0, out=mask)
        if mask.any():
            table[:, ZEROS] = np.add.reduceat(mask, starts, dtype=np.float64)
    if not np.isfinite(table[:, SUM] + table[:, SUM_SQUARES]).all():
        table[:, NANS] = np.add.reduceat(np.isnan(values, out=mask), starts, dtype=np.float64)
        table[:, INFS] = np.add.reduceat(np.isinf(values, out=mask), starts, dtype=np.float64)
