"""Summaries of tensors on a device: operations whose results stay there until one transfer fetches them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore
import numpy as np
import numpy.typing as npt
from mindspore import ops

from vario.core.records import COUNT, INFS, MAX, MIN, NANS, SUM, SUM_SQUARES, ZEROS, Table, empty_table

MEASURED = (SUM, SUM_SQUARES, MIN, MAX, NANS, INFS, ZEROS)
"""What `device_row` returns, in this order; the count is known."""


def device_row(tensor: Any, eps: float) -> Any:
    """Return the measured columns of a tensor's Summary, as a tensor. It also compiles, as part of a graph."""
    values = ops.reshape(ops.cast(tensor, mindspore.float32), (-1,))
    is_nan = ops.isnan(values)
    magnitude = ops.abs(values)
    is_zero = ops.less(magnitude, eps) if eps else ops.equal(magnitude, 0.0)
    infinite = ops.full_like(values, float("inf"))
    columns = (
        ops.reduce_sum(values),
        ops.reduce_sum(ops.square(values)),
        ops.reduce_min(ops.select(is_nan, infinite, values)),
        ops.reduce_max(ops.select(is_nan, -infinite, values)),
        ops.reduce_sum(ops.cast(is_nan, mindspore.float32)),
        ops.reduce_sum(ops.cast(ops.isinf(values), mindspore.float32)),
        ops.reduce_sum(ops.cast(is_zero, mindspore.float32)),
    )
    return ops.stack(columns)


def table(measured: npt.NDArray[Any], counts: Sequence[int]) -> Table:
    """Return Summaries from measured columns that were fetched to the host."""
    found = empty_table(len(counts))
    found[:, COUNT] = counts
    found[:, list(MEASURED)] = measured
    has_none = found[:, MIN] > found[:, MAX]  # nothing but NaN
    found[has_none, MIN] = found[has_none, MAX] = np.nan
    has_nan = found[:, NANS] > 0
    found[has_nan, SUM] = found[has_nan, SUM_SQUARES] = np.nan
    return found
