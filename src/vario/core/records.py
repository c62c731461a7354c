"""The nouns that travel from a tensor to a curve: Quantity, Summary, Frame, Scalars.

A Summary is what one pass over a tensor yields. It is kept as one row of a float64 table, its columns in the
order of `COLUMNS`; every statistic is a function of those columns and Summaries of the same target merge exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.float64]
"""Summaries, one row each, columns as in `COLUMNS`."""

COLUMNS = ("count", "sum", "sum_squares", "min", "max", "nans", "infs", "zeros")
COUNT, SUM, SUM_SQUARES, MIN, MAX, NANS, INFS, ZEROS = range(len(COLUMNS))

TensorSpec = tuple[Sequence[int], Any]
"""Shape and dtype of a tensor, as its framework has them."""

StepId = tuple[int, int]
"""A step and a micro-step."""

ROOT = "root"
"""The name of a model's outermost module, whose own name is empty."""


@dataclass(frozen=True)
class Frame:
    """All rows of one quantity at one (step, micro-step) on one rank."""

    quantity: str
    step: int
    micro_step: int
    targets: Sequence[str]
    order: npt.NDArray[np.int32]
    """When each row was observed within its step, counted over all quantities: what went bad first has the lowest."""
    summaries: Table
    forms: Sequence[TensorSpec] | None = None
    """Shape and dtype of each row's tensor, where a sink asked for them."""


@dataclass(frozen=True)
class Scalars:
    """Plain numbers of one step."""

    step: int
    time: float
    """Unix seconds when the step ended."""
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Collective:
    """What all calls of one collective operation at one place in the code have in common."""

    target: str
    """`all_reduce@train.py[31]`; its rows are this with `:input`, `:output` and `:seconds`."""
    operation: str
    site: str
    """Path and line, `.../train.py[31]`; without them where no code of the user is on the stack."""
    group: str
    ranks: tuple[int, ...]
    dtype: str
    num_bytes: int
    """What this rank hands over in one call, or receives where it hands over nothing; of the first call."""
    is_async: bool
    stack: tuple[str, ...]
    """`path[line] function`, the innermost first."""


@dataclass(frozen=True)
class StepRecord:
    """What one step left behind: what sinks and rules are handed.

    A step comes in one record when its updates are complete; what is logged after that comes in further ones. A frame
    may be of an earlier step: what an asynchronous collective has brought is known when it has been waited for.
    """

    step: int
    frames: Sequence[Frame]
    scalars: Scalars
    collectives: Sequence[Collective] = ()
    """Those seen for the first time."""


Structure = dict[str, Any]
"""What `structure.json` holds: modules, parameters, shapes, dtypes."""

HELD = frozenset({"weight", "weight_before", "gradient", "gradient_applied", "moment", "moment_before", "update"})
"""Quantities of which each rank has its share of a parameter: shares add up to the whole, replicas are the same."""

Mesh = dict[str, tuple[int, int]]
"""The dimensions ranks are arranged in: their sizes, and where one rank is."""


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of a parameter one rank holds, and who else holds the same."""

    shape: tuple[int, ...]
    """Of the whole parameter."""
    box: tuple[tuple[int, int], ...] | None = None
    """First and last (exclusive) index held, per dimension; None: all."""
    range: tuple[int, int] | None = None
    """First and last (exclusive) element held of the flattened box; None: all."""
    replicas: tuple[int, ...] = ()
    """The ranks known to hold the same, this one included; empty where nobody knows."""

    def to_json(self) -> dict[str, Any]:
        """As it stands in `structure.json`; what is whole or unknown is left out."""
        found = {"shape": list(self.shape), "box": self.box, "range": self.range}
        return {key: value for key, value in found.items() if value or key == "shape"}


def empty_table(num_rows: int) -> Table:
    """Summaries of nothing: counts of zero, and no minimum or maximum yet."""
    table = np.zeros((num_rows, len(COLUMNS)))
    table[:, MIN] = np.nan
    table[:, MAX] = np.nan
    return table


def merge(summaries: Table, groups: npt.NDArray[np.int64], num_groups: int) -> Table:
    """Summaries that share a group number, merged: sums add, minima and maxima fold, nothing non-finite is lost."""
    merged = empty_table(num_groups)
    with np.errstate(invalid="ignore"):
        for column in (COUNT, SUM, SUM_SQUARES, NANS, INFS, ZEROS):
            np.add.at(merged[:, column], groups, summaries[:, column])
        # fmin and fmax skip the NaN that stands for "no finite element seen".
        np.fmin.at(merged[:, MIN], groups, summaries[:, MIN])
        np.fmax.at(merged[:, MAX], groups, summaries[:, MAX])
    return merged


def merge_all(summaries: Table) -> Table:
    """All rows merged into one."""
    return merge(summaries, np.zeros(len(summaries), dtype=np.int64), 1)


@dataclass(frozen=True)
class HostCopy:
    """What was copied of a tensor to the host."""

    array: npt.NDArray[Any]
    dtype: str
    """The tensor's own, which numpy may not have."""
    shape: tuple[int, ...]
    stride: int
    """1: all elements, in that shape; else every so-many-th of them in a row."""
