"""The reference for all other backends: one Summary per array, in float64, computed immediately."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from vario.core.records import (
    COLUMNS,
    COUNT,
    INFS,
    MAX,
    MIN,
    NANS,
    SUM,
    SUM_SQUARES,
    ZEROS,
    Table,
    empty_table,
    merge_all,
)


class NumpySummaries:
    """The rows of one step."""

    def __init__(self, eps: float) -> None:
        self._eps = eps
        self._lock = threading.Lock()
        self._rows: list[Table] = []
        self._again: dict[str, list[int | None]] = {}
        self.device_seconds = 0.0
        """Always 0: there is no device."""

    def observe(self, tensor: Any, scale: Any = None, name: tuple[str, str] | None = None) -> int | None:
        """Reduce one array, divided by `scale`; return its row within the step, or None if it cannot be read."""
        return self._add(self._summary(tensor, scale))

    def is_steady(self, name: tuple[str, str]) -> bool:
        """Always false: nothing waits here."""
        return False

    def observe_many(self, tensors: list[Any], scale: Any = None, again: str = "") -> list[int | None]:
        """Reduce a list of arrays. A later list with the same name `again` replaces the rows of the earlier one."""
        before = self._again.get(again, []) if again else []
        if len(before) != len(tensors):
            before = [None] * len(tensors)
        rows = [self._add(self._summary(tensor, scale), row) for tensor, row in zip(tensors, before, strict=True)]
        self._again[again] = rows
        return rows

    def at_once(self, tensors: list[Any]) -> list[float] | None:
        """Return the Summary of all these arrays; no row is kept."""
        found = [summary for summary in (self._summary(tensor, None) for tensor in tensors) if summary is not None]
        return merge_all(np.stack(found))[0].tolist() if found else None

    def plain_number(self, value: Any) -> float:
        """Return the value as one number."""
        return float(value.item() if hasattr(value, "item") else value)

    def why_skipped(self, tensor: Any) -> str:
        """Return why an array has no Summary, in words."""
        array = np.asarray(tensor)
        return "it is empty" if not array.size else f"{array.dtype} is not a numeric dtype"

    def collect(self, keep: bool = False) -> Callable[[], Table]:
        """End the step, or with `keep` continue it; return a function that returns the rows."""
        with self._lock:
            rows = list(self._rows)
            if not keep:
                self._rows, self._again = [], {}
        return lambda: np.stack(rows) if rows else empty_table(0)

    def _summary(self, tensor: Any, scale: Any) -> Table | None:
        array = np.asarray(tensor)
        if not array.size or array.dtype.kind not in "biufc":
            return None
        return summarise(array if scale is None else array / scale, self._eps)

    def _add(self, summary: Table | None, row: int | None = None) -> int | None:
        if summary is None:
            return None
        with self._lock:
            if row is None:
                self._rows.append(summary)
                return len(self._rows) - 1
            self._rows[row] = summary
            return row


def summarise(array: npt.NDArray[Any], eps: float = 1e-8) -> Table:
    """Return the Summary of one array; complex elements are measured by their magnitude."""
    if np.iscomplexobj(array):
        array = np.abs(array.astype(np.complex128))
    values = np.asarray(array, dtype=np.float64).ravel()
    row = np.zeros(len(COLUMNS))
    numbers = values[~np.isnan(values)]
    with np.errstate(invalid="ignore", over="ignore"):
        row[COUNT] = values.size
        row[SUM] = values.sum()
        row[SUM_SQUARES] = np.square(values).sum()
        row[MIN] = numbers.min() if numbers.size else np.nan
        row[MAX] = numbers.max() if numbers.size else np.nan
        row[NANS] = values.size - numbers.size
        row[INFS] = np.isinf(values).sum()
        row[ZEROS] = (np.abs(values) < eps).sum() if eps else (values == 0).sum()
    return row
