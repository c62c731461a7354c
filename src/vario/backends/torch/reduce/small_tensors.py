"""Summaries of many small CPU tensors at once.

A model may have a hundred thousand parameters of a few elements each, and a dozen tensor operations for each of them
take longer than its training step. Here one copy lays them end to end, and each column of all their Summaries is one
operation. As for single small tensors, everything is reduced in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from vario.backends.torch.reduce.cpu import SMALL
from vario.records import COUNT, INFS, MAX, MIN, NANS, SUM, SUM_SQUARES, ZEROS, Table, empty_table

LEAST_TOGETHER = 4
"""Fewer tensors are reduced one by one, which takes half as long for a single one."""
MOST_TOGETHER = 1 << 20
"""Elements that are copied together: 8 MiB of float64."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_REAL = frozenset({torch.float32, torch.bfloat16, torch.float16, torch.float64})


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


def summarise_together(tensors: Sequence[torch.Tensor], eps: float, columns: frozenset[str]) -> Table:
    """The Summary of each of these small tensors, a row each."""
    sizes = np.array([tensor.numel() for tensor in tensors], np.int64)
    table = empty_table(len(tensors))
    table[:, COUNT] = sizes
    for first, last in _stretches(tensors, sizes):
        flat = torch._C._nn.flatten_dense_tensors(list(tensors[first:last])).detach().double().numpy()
        starts = np.cumsum(sizes[first:last]) - sizes[first:last]
        with np.errstate(all="ignore"):
            _fill(table[first:last], flat, starts, eps, columns)
    return table


def _stretches(tensors: Sequence[torch.Tensor], sizes: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Neighbours of one dtype, as many as are copied together."""
    first = waiting = 0
    for at, size in enumerate(sizes.tolist()):
        if at > first and (waiting + size > MOST_TOGETHER or tensors[at].dtype is not tensors[first].dtype):
            yield first, at
            first, waiting = at, 0
        waiting += size
    if len(sizes):
        yield first, len(sizes)


def _fill(
    table: Table, flat: npt.NDArray[np.float64], starts: npt.NDArray[np.int64], eps: float, columns: frozenset[str]
) -> None:
    """Reduce each stretch of elements into its row."""
    table[:, SUM] = np.add.reduceat(flat, starts)
    if "sum_squares" in columns:
        table[:, SUM_SQUARES] = np.add.reduceat(flat * flat, starts)
    if "min" in columns or "max" in columns:
        # These pass over NaN, and leave it where there is nothing else.
        table[:, MIN] = np.fmin.reduceat(flat, starts)
        table[:, MAX] = np.fmax.reduceat(flat, starts)
    if "zeros" in columns:
        is_zero = np.abs(flat) < eps if eps else flat == 0
        table[:, ZEROS] = np.add.reduceat(is_zero, starts, dtype=np.float64)
    if not np.isfinite(table[:, SUM] + table[:, SUM_SQUARES]).all():
        table[:, NANS] = np.add.reduceat(np.isnan(flat), starts, dtype=np.float64)
        table[:, INFS] = np.add.reduceat(np.isinf(flat), starts, dtype=np.float64)
