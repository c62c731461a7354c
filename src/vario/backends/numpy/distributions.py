"""Distributions of arrays: the reference for all other backends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vario.backends.bin_counts import count_bins
from vario.core.elements.bins import BinTable, Counts


class NumpyDistributions:
    """The distributions of one step, counted immediately."""

    def __init__(self) -> None:
        self._counts: dict[int, Counts] = {}
        self.device_seconds = 0.0
        """Always 0: there is no device."""

    def count_rows(self, rows: Sequence[int | None], tensors: Sequence[Any], scale: Any = None) -> None:
        """Count the elements of arrays, divided by `scale`, as those of these rows; integers have none."""
        for row, tensor in zip(rows, tensors, strict=True):
            array = np.asarray(tensor)
            if row is not None and array.dtype.kind in "fc":
                self._counts[row] = count_bins(array, 1.0 if scale is None else float(scale) or 1.0)

    def collect_rows(self) -> Callable[[], BinTable]:
        """End the step; return a function that returns the counts."""
        counts, self._counts = self._counts, {}
        return lambda: BinTable(counts)
