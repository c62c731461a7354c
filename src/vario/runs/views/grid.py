"""All series of a quantity at once: a number for each target and step, merged over ranks and micro-steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vario.records import COLUMNS, COUNT, INFS, MAX, MIN, NANS, SUM, SUM_SQUARES, ZEROS, merge
from vario.runs.files.arrays import numbers
from vario.runs.files.budget import SUMMARY_BYTES, Budget, check_cells
from vario.runs.files.store_reader import summaries
from vario.runs.reader import RunReader

Values = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

LAST = float("inf")
"""The order of what has none: plain numbers are known when their step has ended."""


@dataclass(frozen=True)
class Grid:
    """The series of one quantity: rows are targets in order of observation, columns are steps."""

    quantity: str
    targets: tuple[str, ...]
    order: Values
    """When each target is observed within a step."""
    steps: Steps
    statistics: dict[str, Values]
    """A table for each statistic; NaN where there is no number."""
    bad: npt.NDArray[np.bool_]
    """Where a NaN or Inf was counted."""

    def __len__(self) -> int:
        return len(self.targets)


def read_grid(run: RunReader, quantity: str, first_step: int | None = None) -> Grid:
    """All series of a quantity, from a step on.

    Shares of a parameter add up. Replicas that were recorded on several ranks count several times, which leaves sizes
    per element, extremes and shares as they are.
    """
    if quantity == "scalar":
        return _scalars(run, first_step)
    places: dict[str, int] = {}
    pieces, steps_of, targets_of, orders_of = [], [], [], []
    budget = Budget(SUMMARY_BYTES)
    for rank in run.ranks:
        if quantity not in run.quantities(rank):
            continue
        table = run.columns(quantity, ["step", "order", "target", *COLUMNS], rank, first_step, budget)
        if not table.num_rows:
            continue
        target = table.column("target").combine_chunks()
        codes = np.array([places.setdefault(name, len(places)) for name in target.dictionary.to_pylist()], np.int64)
        steps_of.append(numbers(table.column("step")))
        orders_of.append(numbers(table.column("order")))
        targets_of.append(codes[numbers(target.indices)])
        pieces.append(summaries(table))
    if not pieces:
        return Grid(quantity, (), np.zeros(0), np.zeros(0, np.int64), {}, np.zeros((0, 0), np.bool_))
    rows, at, when = np.concatenate(pieces), np.concatenate(targets_of), np.concatenate(steps_of)
    steps, columns = np.unique(when, return_inverse=True)
    check_cells(run.path, len(places) * len(steps), len(rows), rows.itemsize * len(COLUMNS))
    order = np.full(len(places), LAST)
    np.minimum.at(order, at, np.concatenate(orders_of).astype(np.float64))
    merged = _merged(rows, at * len(steps) + columns.reshape(-1), len(places) * len(steps))
    grid = merged.reshape(len(places), len(steps), len(COLUMNS))
    seen = np.unique(at)
    by_order = seen[np.argsort(order[seen], kind="stable")]
    names = list(places)
    grid = grid[by_order]
    return Grid(
        quantity,
        tuple(names[index] for index in by_order),
        order[by_order],
        steps,
        _derived(grid),
        np.nan_to_num(grid[:, :, NANS]) + np.nan_to_num(grid[:, :, INFS]) > 0,
    )


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
    places: dict[str, int] = {}
    steps_of, targets_of, values_of = [], [], []
    budget = Budget(SUMMARY_BYTES)
    for rank in run.ranks:
        if "scalar" not in run.quantities(rank):
            continue
        table = run.columns("scalar", ["step", "target", "value"], rank, first_step, budget)
        if table.num_rows:
            target = table.column("target").combine_chunks()
            names = target.dictionary.to_pylist()
            codes = np.array([places.setdefault(name, len(places)) for name in names], np.int64)
            steps_of.append(numbers(table.column("step")))
            targets_of.append(codes[numbers(target.indices)])
            values_of.append(numbers(table.column("value")))
    if not steps_of:
        return Grid("scalar", (), np.zeros(0), np.zeros(0, np.int64), {}, np.zeros((0, 0), np.bool_))
    steps, columns = np.unique(np.concatenate(steps_of), return_inverse=True)
    keys = np.concatenate(targets_of) * len(steps) + columns.reshape(-1)
    size = len(places) * len(steps)
    check_cells(run.path, size, len(keys), keys.itemsize)
    with np.errstate(all="ignore"):
        means = np.bincount(keys, np.concatenate(values_of), size) / np.bincount(keys, minlength=size)
    values = means.reshape(len(places), len(steps))
    is_there = np.bincount(keys, minlength=size).reshape(values.shape) > 0
    bad = is_there & ~np.isfinite(values)
    return Grid("scalar", tuple(places), np.full(len(places), LAST), steps, {"value": values}, bad)
