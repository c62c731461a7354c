"""All series of a quantity: a number per target and step, merged over ranks and micro-steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from vario.core.errors import ConfigError
from vario.core.records import COLUMNS, COUNT, INFS, MAX, MIN, NANS, SUM, SUM_SQUARES, ZEROS, merge
from vario.runs.files.arrays import numbers
from vario.runs.files.budget import SUMMARY_BYTES, Budget, check_cells
from vario.runs.files.store_reader import summaries
from vario.runs.reader import RunReader
from vario.runs.views.heat import read_heat

Values = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]
Taken = TypeVar("Taken")

LAST = float("inf")
"""The order of rows without one: plain numbers are known at the end of their step."""
STATISTICS = ("rms", "absmax", "mean", "zeros")
"""The statistics of a Grid."""
FEW_CELLS = 500_000
"""Up to this many numbers a Grid is read at once, at several hundred bytes each."""
MOST_TARGETS = 10_000_000


@dataclass(frozen=True)
class Grid:
    """The series of one quantity: rows are targets in order of observation, columns are steps."""

    quantity: str
    targets: tuple[str, ...]
    order: Values
    """The position of each target within a step."""
    steps: Steps
    statistics: dict[str, Values]
    """One table per statistic; NaN where there is no number."""
    bad: npt.NDArray[np.bool_]
    """Where a NaN or Inf was counted."""

    def __len__(self) -> int:
        return len(self.targets)


def read_grid(run: RunReader, quantity: str, first_step: int | None = None) -> Grid:
    """Read all series of a quantity, from a step on.

    Shards of a parameter add up. Replicas recorded on several ranks count several times, which does not change sizes
    per element, extremes and shares.
    """
    if quantity == "scalar":
        return _scalars(run, first_step)
    names, when, at, pieces = _rows(
        run, quantity, ["order", *COLUMNS], first_step, lambda table: (numbers(table.column("order")), summaries(table))
    )
    if not pieces:
        return _nothing(quantity)
    rows = np.concatenate([summaries_of for _, summaries_of in pieces])
    steps, columns = np.unique(when, return_inverse=True)
    check_cells(run.path, len(names) * len(steps), len(rows), rows.itemsize * len(COLUMNS))
    order = np.full(len(names), LAST)
    np.minimum.at(order, at, np.concatenate([orders for orders, _ in pieces]).astype(np.float64))
    merged = _merged(rows, at * len(steps) + columns.reshape(-1), len(names) * len(steps))
    grid = merged.reshape(len(names), len(steps), len(COLUMNS))
    seen = np.unique(at)
    by_order = seen[np.argsort(order[seen], kind="stable")]
    grid = grid[by_order]
    return Grid(
        quantity,
        tuple(names[index] for index in by_order),
        order[by_order],
        steps,
        _derived(grid),
        np.nan_to_num(grid[:, :, NANS]) + np.nan_to_num(grid[:, :, INFS]) > 0,
    )


def read_big_grid(run: RunReader, quantity: str, first_step: int) -> Grid:
    """Like `read_grid`, in model order instead of the order of observation, and with seven digits."""
    found: dict[str, Values] = {}
    targets: tuple[str, ...] = ()
    steps = np.zeros(0, np.int64)
    bad = np.zeros((0, 0), np.bool_)
    for statistic in STATISTICS:
        try:
            heat = read_heat(run, quantity, statistic, first=first_step, rows=MOST_TARGETS, columns=MOST_TARGETS)
        except ConfigError:
            continue  # the columns it needs were not recorded
        if not np.isnan(heat.values).all():
            found[statistic] = heat.values.astype(np.float64)
        steps, targets, bad = heat.last, heat.targets, heat.bad > 0
    return Grid(quantity, targets, np.arange(len(targets), dtype=np.float64), steps, found, bad)


def _merged(rows: Values, keys: Steps, size: int) -> Values:
    whole = np.full((size, len(COLUMNS)), np.nan)
    if np.bincount(keys, minlength=1).max() == 1:
        whole[keys] = rows
        return whole
    known, groups = np.unique(keys, return_inverse=True)
    whole[known] = merge(rows, groups.reshape(-1), len(known))
    return whole


def _derived(grid: Values) -> dict[str, Values]:
    with np.errstate(all="ignore"):
        count = np.where(grid[:, :, COUNT] > 0, grid[:, :, COUNT], np.nan)
        found = {
            "rms": np.sqrt(grid[:, :, SUM_SQUARES] / count),
            "absmax": np.maximum(np.abs(grid[:, :, MIN]), np.abs(grid[:, :, MAX])),
            "mean": grid[:, :, SUM] / count,
            "zeros": grid[:, :, ZEROS] / count,
        }
    return {name: values for name, values in found.items() if not np.isnan(values).all()}


def _scalars(run: RunReader, first_step: int | None) -> Grid:
    names, when, at, pieces = _rows(run, "scalar", ["value"], first_step, lambda table: numbers(table.column("value")))
    if not pieces:
        return _nothing("scalar")
    steps, columns = np.unique(when, return_inverse=True)
    keys = at * len(steps) + columns.reshape(-1)
    size = len(names) * len(steps)
    check_cells(run.path, size, len(keys), keys.itemsize)
    with np.errstate(all="ignore"):
        means = np.bincount(keys, np.concatenate(pieces), size) / np.bincount(keys, minlength=size)
    values = means.reshape(len(names), len(steps))
    is_there = np.bincount(keys, minlength=size).reshape(values.shape) > 0
    bad = is_there & ~np.isfinite(values)
    return Grid("scalar", tuple(names), np.full(len(names), LAST), steps, {"value": values}, bad)


def _rows(
    run: RunReader, quantity: str, columns: list[str], first_step: int | None, taken: Callable[[Any], Taken]
) -> tuple[list[str], Steps, Steps, list[Taken]]:
    """All names, the step and name index of each row, and which rows of each rank are used."""
    places: dict[str, int] = {}
    pieces, steps, targets = [], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    budget = Budget(SUMMARY_BYTES)
    for rank in run.ranks:
        if quantity not in run.quantities(rank):
            continue
        table = run.columns(quantity, ["step", "target", *columns], rank, first_step, budget)
        if table.num_rows:
            target = table.column("target").combine_chunks()
            names = target.dictionary.to_pylist()
            codes = np.array([places.setdefault(name, len(places)) for name in names], np.int64)
            steps.append(numbers(table.column("step")))
            targets.append(codes[numbers(target.indices)])
            pieces.append(taken(table))
    return list(places), np.concatenate(steps), np.concatenate(targets), pieces


def _nothing(quantity: str) -> Grid:
    return Grid(quantity, (), np.zeros(0), np.zeros(0, np.int64), {}, np.zeros((0, 0), np.bool_))
