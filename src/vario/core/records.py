"""The records between a tensor and a curve: Quantity, Summary, Frame, Scalars.

A Summary is the result of one pass over a tensor. It is one row of a float64 table with the columns in `COLUMNS`. Every
statistic is a function of those columns, and Summaries of the same target merge exactly.
"""

from __future__ import annotations

import math
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
"""Shape and dtype of a tensor, in its framework's terms."""

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
    """The position of each row within its step, over all quantities: the first non-finite tensor has the lowest."""
    summaries: Table
    specs: Sequence[TensorSpec] | None = None
    """Shape and dtype of each row's tensor, if a sink asked for them."""
    detail: Sequence[bytes] | None = None
    """What each row has besides its Summary, as stored: its distribution (`core.elements.bins`), or the largest
    channels (`core.elements.channels`). Empty where there is nothing; None: no row has anything."""


@dataclass(frozen=True)
class Scalars:
    """Plain numbers of one step."""

    step: int
    time: float
    """Unix time at the end of the step."""
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Collective:
    """One collective operation at one place in the code."""

    target: str
    """`all_reduce@train.py[31]`; its rows are this with `:input`, `:output` and `:seconds`."""
    operation: str
    site: str
    """Path and line, `.../train.py[31]`; empty if no user code is on the stack."""
    group: str
    ranks: tuple[int, ...]
    dtype: str
    num_bytes: int
    """The bytes this rank sends in the first call, or receives if it sends nothing."""
    is_async: bool
    stack: tuple[str, ...]
    """`path[line] function`, innermost first."""


@dataclass(frozen=True)
class StepRecord:
    """The records of one step, as passed to sinks and rules.

    A step is one record, created when its updates are complete; what is logged later comes in further records. A frame
    may belong to an earlier step: the result of an asynchronous collective is known only after it was waited for.
    """

    step: int
    frames: Sequence[Frame]
    scalars: Scalars
    collectives: Sequence[Collective] = ()
    """Collectives seen for the first time."""


Structure = dict[str, Any]
"""The content of `structure.json`: modules, parameters, shapes, dtypes."""

HELD = frozenset({"weight", "weight_before", "gradient", "gradient_applied", "moment", "moment_before", "update"})
"""Quantities of which each rank has its part of a parameter: shards add up to the whole, replicas are equal."""

Mesh = dict[str, tuple[int, int]]
"""The device mesh: the size of each dimension, and one rank's coordinates."""

BATCH_DIMENSIONS = frozenset({"data", "dp", "replicate", "shard", "dp_replicate", "dp_shard", "fsdp"})
"""Dimensions of a mesh along which ranks do the same work on different data."""


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of a parameter one rank has, and which ranks have the same."""

    shape: tuple[int, ...]
    """The shape of the whole parameter."""
    box: tuple[tuple[int, int], ...] | None = None
    """First and last (exclusive) index of this part, per dimension; None: all."""
    range: tuple[int, int] | None = None
    """First and last (exclusive) element of the flattened box; None: all."""
    replicas: tuple[int, ...] = ()
    """The ranks known to have the same part, this one included; empty if unknown."""

    @property
    def size(self) -> int:
        """The elements of the whole parameter."""
        return math.prod(self.shape)

    def to_json(self) -> dict[str, Any]:
        """Return the entry for `structure.json`, without what is whole or unknown."""
        found = {"shape": list(self.shape), "box": self.box, "range": self.range}
        return {key: value for key, value in found.items() if value or key == "shape"}


def empty_table(num_rows: int) -> Table:
    """Return empty Summaries: counts of zero, no minimum or maximum."""
    table = np.zeros((num_rows, len(COLUMNS)))
    table[:, MIN] = np.nan
    table[:, MAX] = np.nan
    return table


def merge(summaries: Table, groups: npt.NDArray[np.int64], num_groups: int) -> Table:
    """Merge Summaries by group number: sums add, extremes fold, and no NaN or Inf is lost."""
    merged = empty_table(num_groups)
    with np.errstate(invalid="ignore"):
        for column in (COUNT, SUM, SUM_SQUARES, NANS, INFS, ZEROS):
            np.add.at(merged[:, column], groups, summaries[:, column])
        # fmin and fmax skip NaN, which means "no finite element yet".
        np.fmin.at(merged[:, MIN], groups, summaries[:, MIN])
        np.fmax.at(merged[:, MAX], groups, summaries[:, MAX])
    return merged


def merge_all(summaries: Table) -> Table:
    """Merge all rows into one."""
    return merge(summaries, np.zeros(len(summaries), dtype=np.int64), 1)


@dataclass(frozen=True)
class HostCopy:
    """A copy of a tensor, or of a sample of it, on the host."""

    array: npt.NDArray[Any]
    dtype: str
    """The tensor's dtype, which numpy may not have."""
    shape: tuple[int, ...]
    stride: int
    """1: all elements, in that shape; n: every n-th element, flattened."""
