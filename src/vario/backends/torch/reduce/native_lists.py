"""Lists of CPU tensors reduced by the C library: one pass over each tensor, no copies."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vario.backends import native
from vario.backends.torch.reduce.memory_reads import are_plain, has_plain_memory, have_plain_memory
from vario.backends.torch.reduce.tensors import is_inside_transform
from vario.core.records import COLUMNS, COUNT, MAX, MIN, SUM, SUM_SQUARES, ZEROS, Table

CODES = {getattr(torch, name): number for name, number in native.DTYPES.items()}
_dtype = attrgetter("dtype")
_ALL = frozenset(COLUMNS)


class NativeLists:
    """Summaries of lists of tensors of one step, and which rows of the step they are."""

    def __init__(self, eps: float, columns: frozenset[str]) -> None:
        self._eps, self._columns = eps, columns
        self.tables: list[tuple[range, Table]] = []
        self._named: dict[str, int] = {}
        """By the name of a list: its place among these."""

    def place(
        self, tensors: Sequence[torch.Tensor], scale: torch.Tensor | None, again: str, next_row: int
    ) -> range | None:
        """Reduce tensors into rows from `next_row` on, or into those of the list that had the same name `again`.

        None if the library cannot read one of them.
        """
        if not tensors or not tensors[0].is_cpu or is_inside_transform():
            return None
        table = summaries(tensors, self._eps, self._columns, 1.0 if scale is None else float(scale))
        if table is None:
            return None
        earlier = self._named.get(again) if again else None
        if earlier is not None and np.array_equal(self.tables[earlier][1][:, COUNT], table[:, COUNT]):
            rows = self.tables[earlier][0]
            self.tables[earlier] = rows, table
            return rows
        rows = range(next_row, next_row + len(tensors))
        self._named[again] = len(self.tables)
        self.tables.append((rows, table))
        return rows


def squares(tensors: Sequence[torch.Tensor]) -> npt.NDArray[np.float64] | None:
    """Return the sum of the squares of each of some allocated plain tensors on the host; None without the library."""
    if native.library is None or not _are_readable(tensors):
        return None
    found = np.empty(len(tensors))
    for at, addresses, sizes, code in _by_dtype(tensors):
        found[at] = native.library.squares(addresses, sizes, code)
    return found


def summaries(tensors: Sequence[torch.Tensor], eps: float, columns: frozenset[str], scale: float = 1.0) -> Table | None:
    """Return the Summary of each tensor, divided by `scale`; None if the library cannot read one of them."""
    if native.library is None or not are_plain(tensors) or not _are_readable(tensors):
        return None
    parts = list(_by_dtype(tensors))
    if len(parts) == 1:
        _, addresses, sizes, code = parts[0]
        return _finished(native.library.summarise(addresses, sizes, code, eps * scale), columns, scale)
    table = np.empty((len(tensors), len(COLUMNS)))
    for at, addresses, sizes, code in parts:
        table[at] = native.library.summarise(addresses, sizes, code, eps * scale)
    return _finished(table, columns, scale)


def summary(tensor: torch.Tensor, eps: float, columns: frozenset[str], scale: float = 1.0) -> list[float] | None:
    """Return the Summary of one tensor with plain memory on the host; None if the library cannot read it."""
    code = CODES.get(tensor.dtype)
    if native.library is None or code is None:
        return None
    table = native.library.summarise(np.array([tensor.data_ptr()]), np.array([tensor.numel()]), code, eps * scale)
    row: list[float] = _finished(table, columns, scale)[0].tolist()
    return row


def readable_summary(tensor: torch.Tensor, eps: float, columns: frozenset[str]) -> list[float] | None:
    """Return the Summary of any tensor on the host; None if the library cannot read it."""
    return summary(tensor, eps, columns) if has_plain_memory(tensor) else None


def _are_readable(tensors: Sequence[torch.Tensor]) -> bool:
    sizes = map(torch.Tensor.numel, tensors)
    return bool(tensors) and min(sizes) > 0 and CODES.keys() >= set(map(_dtype, tensors)) and have_plain_memory(tensors)


def _by_dtype(tensors: Sequence[torch.Tensor]) -> list[tuple[Any, native.Integers, native.Integers, int]]:
    """Return which tensors have each type, their addresses, their sizes, and the number of the type."""
    addresses = np.fromiter(map(torch.Tensor.data_ptr, tensors), np.int64, len(tensors))
    sizes = np.fromiter(map(torch.Tensor.numel, tensors), np.int64, len(tensors))
    dtypes = list(map(_dtype, tensors))
    if dtypes.count(dtypes[0]) == len(dtypes):
        return [(slice(None), addresses, sizes, CODES[dtypes[0]])]
    codes = np.array([CODES[dtype] for dtype in dtypes])
    groups = [(code, np.flatnonzero(codes == code)) for code in np.unique(codes).tolist()]
    return [(at, addresses[at], sizes[at], code) for code, at in groups]


def _finished(table: Table, columns: frozenset[str], scale: float) -> Table:
    if scale not in (0.0, 1.0):
        with np.errstate(all="ignore"):
            table[:, [SUM, SUM_SQUARES, MIN, MAX]] /= (scale, scale**2, scale, scale)
    if columns >= _ALL:
        return table
    # As without the library: what nobody asked for is not there.
    if "sum_squares" not in columns:
        table[:, SUM_SQUARES] = 0.0
    if "min" not in columns and "max" not in columns:
        table[:, [MIN, MAX]] = np.nan
    if "zeros" not in columns:
        table[:, ZEROS] = 0.0
    return table
