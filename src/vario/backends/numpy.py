"""The reference every other backend is tested against: one Summary per array, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vario.core.records import COLUMNS, COUNT, INFS, MAX, MIN, NANS, SUM, SUM_SQUARES, ZEROS, Table


def summarise(array: npt.NDArray[Any], eps: float = 1e-8) -> Table:
    """The Summary of one array; complex elements are measured by their magnitude."""
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
