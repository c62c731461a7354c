"""Tensors to Summaries: on the host they are read in place, on a device they are reduced there and fetched at once.

MindSpore computes ahead of Python even on the host, and each read of a tensor waits for it, in milliseconds on a busy
machine. So the tensors of single calls (activations) are copied, which waits for nothing, and read together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import Tensor, ops
from mindspore.graph.api import _no_grad

from vario.backends.mindspore import device_rows
from vario.backends.mindspore.graph_slots import Reduced
from vario.backends.mindspore.host_rows import host_row
from vario.backends.mindspore.tensors import is_kept, is_on_host, on_host, size
from vario.core.records import COLUMNS, Table, empty_table, merge_all

Row = Any
"""A Summary (on the host), or a call that makes it when the step is recorded, or a tensor of measured columns."""
_MOST_WAITING_BYTES = 64 * 2**20
"""Copies that wait to be read; with more, they are read at once."""
_LATER = 8
"""The size of a copy is asked for when so many others have followed it: right away that would wait for it."""


_NOTHING = np.full(len(COLUMNS), np.nan)
"""The row of a tensor without elements."""


class MindSporeSummaries:
    """The rows of one step."""

    def __init__(self, eps: float, columns: frozenset[str]) -> None:
        self._eps = eps
        self._columns = columns
        self._is_on_host = is_on_host()
        self._lock = threading.Lock()
        self._again: dict[str, list[int | None]] = {}
        self._rows: list[Row] = []
        self._counts: list[int] = []
        self._waiting: list[tuple[int, Any, Any]] = []
        """Row, copy and scale of tensors on the host that are still to be read."""
        self._waiting_bytes = 0
        self.device_seconds = 0.0

    def observe(self, tensor: Any, scale: Any = None, name: tuple[str, str] | None = None) -> int | None:
        """Reduce one tensor, divided by `scale`; return its row within the step, or None if it cannot be read."""
        if not (self._is_on_host and isinstance(tensor, Tensor) and is_kept(tensor)):
            return self._add(tensor, scale)
        with _no_grad():
            copied = tensor * 1  # a copy of any shape and dtype, which waits for nothing, not even for them
        with self._lock:
            self._rows.append(None)
            self._counts.append(0)
            row = len(self._rows) - 1
            self._waiting.append((row, copied, scale))
            if len(self._waiting) > _LATER:
                self._waiting_bytes += 4 * size(self._waiting[-1 - _LATER][1])
        if self._waiting_bytes > _MOST_WAITING_BYTES:
            self._read_waiting()
        return row

    def _read_waiting(self) -> None:
        with self._lock:
            waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        for row, copied, scale in reversed(waiting):  # when the last one is there, so are the others
            self._rows[row] = self._host_row(copied, scale) if size(copied) else _NOTHING

    def is_steady(self, name: tuple[str, str]) -> bool:
        """Always false: nothing waits here."""
        return False

    def observe_many(self, tensors: list[Any], scale: Any = None, again: str = "") -> list[int | None]:
        """Reduce a list of tensors. A later list with the same name `again` replaces the rows of the earlier one."""
        before = self._again.get(again, []) if again else []
        if len(before) != len(tensors):
            before = [None] * len(tensors)
        if self._is_on_host and tensors and isinstance(tensors[-1], Tensor):
            on_host(tensors[-1])  # the one wait: the others were computed before it
        rows = [self._add(tensor, scale, row) for tensor, row in zip(tensors, before, strict=True)]
        self._again[again] = rows
        return rows

    def at_once(self, tensors: list[Any]) -> list[float] | None:
        """Return the Summary of all these tensors if their values are on the host; no row is kept."""
        if not self._is_on_host:
            return None
        found = [self._host_row(tensor, None) for tensor in tensors if self._can_read(tensor)]
        return merge_all(np.stack(found))[0].tolist() if found else None

    def plain_number(self, value: Any) -> float | None:
        """Return a logged value as a number; None for a tensor, which may not be computed yet."""
        if not isinstance(value, Tensor):
            return float(value.item() if hasattr(value, "item") else value)
        if size(value) != 1:
            raise ValueError(f"expected one number, got a tensor of shape {tuple(value.shape)}")
        return None

    def why_skipped(self, tensor: Any) -> str:
        """Return why a tensor has no Summary, in words."""
        if not isinstance(tensor, Tensor):
            return f"a {type(tensor).__name__} cannot be read"
        return "it is empty" if not size(tensor) else f"{tensor.dtype} is not a numeric dtype"

    def collect(self, keep: bool = False) -> Callable[[], Table]:
        """End the step, or with `keep` continue it; return a function that waits for the rows and returns them."""
        self._read_waiting()
        with self._lock:
            rows, counts = list(self._rows), list(self._counts)
            if not keep:
                self._rows, self._counts, self._again = [], [], {}
        waiting = [number for number, row in enumerate(rows) if isinstance(row, Tensor)]
        with _no_grad():
            stacked = ops.stack([rows[number] for number in waiting]) if waiting else None

        def fetch() -> Table:
            table = empty_table(len(rows))
            for number, row in enumerate(rows):
                if not isinstance(row, Tensor):
                    table[number] = row() if callable(row) else row
            if stacked is not None:
                table[waiting] = device_rows.table(stacked.asnumpy(), [counts[number] for number in waiting])
            return table

        return fetch

    def _add(self, tensor: Any, scale: Any, place: int | None = None) -> int | None:
        row = self._reduced(tensor, scale)
        if row is None:
            return None
        with self._lock:
            if place is None:
                self._rows.append(row)
                self._counts.append(size(tensor))
                return len(self._rows) - 1
            self._rows[place], self._counts[place] = row, size(tensor)
            return place

    def _reduced(self, tensor: Any, scale: Any) -> Row | None:
        if isinstance(tensor, Reduced):
            return tensor.row(None if scale is None else _number(scale))
        if not self._can_read(tensor):
            return None
        if self._is_on_host:
            if size(tensor) == 1 and is_kept(tensor):
                # A number, such as the loss, need not be ready yet: the writer waits for it.
                return lambda: self._host_row(tensor, scale)
            return self._host_row(tensor, scale)
        with _no_grad():
            values = tensor if scale is None else tensor / scale
            return device_rows.device_row(values, self._eps)

    def _host_row(self, tensor: Any, scale: Any) -> Table:
        array = on_host(tensor)
        return host_row(array if scale is None else array / _number(scale), self._eps, self._columns)

    @staticmethod
    def _can_read(tensor: Any) -> bool:
        return isinstance(tensor, Tensor) and size(tensor) > 0


def _number(scale: Any) -> float:
    return float(on_host(scale).reshape(-1)[0]) if isinstance(scale, Tensor) else float(scale)
