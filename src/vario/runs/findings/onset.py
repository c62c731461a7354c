"""Where did it start? The first NaN or Inf of a run, and what followed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vario.core.errors import ConfigError
from vario.core.records import INFS, NANS
from vario.rules.api.masks import are_masks
from vario.runs.files.arrays import numbers, take
from vario.runs.files.listing_cache import listings_cached
from vario.runs.files.store_reader import LAST, summaries
from vario.runs.reader import Rank, RunReader

CHAIN_LENGTH = 8


@dataclass(frozen=True)
class BadRow:
    """A target that contained a NaN or Inf."""

    step: int
    micro_step: int
    rank: int
    quantity: str
    target: str
    nans: int
    infs: int
    count: int
    order: int
    """When it was observed within its step."""


@dataclass(frozen=True)
class Usual:
    """A target at its last healthy step; None for what was not recorded."""

    step: int
    absmax: float | None
    norm: float | None


@dataclass(frozen=True)
class Onset(BadRow):
    """The first NaN or Inf of a run."""

    usual: Usual | None
    """The same target at its last healthy step."""
    chain: Sequence[BadRow]
    """The next few targets with a NaN or Inf, in order."""
    inputs_were_finite: bool | None
    """For a module's output: whether its inputs were finite; None if unknown."""


@listings_cached()
def first_bad(run: RunReader, rank: Rank = "all") -> Onset | None:
    """Find the first NaN or Inf, by step and then by order within the step; None if all rows are finite."""
    ranks = run.ranks if rank == "all" else [rank]
    bad = [row for number in ranks for quantity in run.quantities(number) for row in _bad_rows(run, quantity, number)]
    if not bad:
        return None
    bad.sort(key=lambda row: (row.step, row.order, row.rank))
    return _onset(run, bad[0], bad[1:])


@listings_cached()
def onset_at(run: RunReader, step: int, micro_step: int, rank: int, quantity: str, target: str) -> Onset | None:
    """Describe one non-finite tensor: its state before, whether its inputs were finite, and what followed."""
    bad = [row for name in run.quantities(rank) for row in _bad_rows(run, name, rank)]
    bad.sort(key=lambda row: (row.step, row.order))
    place = (step, micro_step, quantity, target)
    at = [index for index, row in enumerate(bad) if (row.step, row.micro_step, row.quantity, row.target) == place]
    return _onset(run, bad[at[0]], bad[at[0] + 1 :]) if at else None


def _onset(run: RunReader, first: BadRow, later: Sequence[BadRow]) -> Onset:
    chain: dict[tuple[str, str], BadRow] = {}
    for row in later:
        key = (row.quantity, row.target)
        if key != (first.quantity, first.target):
            chain.setdefault(key, row)
        if len(chain) == CHAIN_LENGTH:
            break
    return Onset(
        **vars(first),
        usual=_usual(run, first),
        chain=tuple(chain.values()),
        inputs_were_finite=_inputs_were_finite(run, first),
    )


def _bad_rows(run: RunReader, quantity: str, rank: int) -> list[BadRow]:
    """The non-finite rows of a quantity at its first bad step and the one after."""
    table = run.bad_rows(quantity, rank)
    if table is None:
        return []
    steps = numbers(table.column("step"))
    rows = take(table, np.flatnonzero(np.isin(steps, np.unique(steps)[:2]))).to_pylist()
    if quantity == "scalar":
        return [
            BadRow(row["step"], 0, rank, quantity, row["target"], int(is_nan), int(not is_nan), 1, LAST)
            for row in rows
            for is_nan in [math.isnan(row["value"])]
        ]
    return [
        BadRow(
            row["step"],
            row["micro_step"],
            rank,
            quantity,
            row["target"],
            row["nans"] or 0,
            row["infs"] or 0,
            row["count"] or 0,
            row["order"],
        )
        for row in rows
    ]


def _usual(run: RunReader, bad: BadRow) -> Usual | None:
    if bad.quantity == "scalar":
        values = run.series(bad.target, "scalar", "value", bad.rank)
        healthy = np.flatnonzero(np.isfinite(values.values) & (values.steps < bad.step))
        if not len(healthy):
            return None
        return Usual(int(values.steps[healthy[-1]]), abs(float(values.values[healthy[-1]])), None)
    nans = run.series(bad.target, bad.quantity, "nans", bad.rank)
    infs = run.series(bad.target, bad.quantity, "infs", bad.rank)
    healthy = np.flatnonzero((nans.values + infs.values == 0) & (nans.steps < bad.step))
    if not len(healthy):
        return None
    step = int(nans.steps[healthy[-1]])
    return Usual(step, _value_at(run, bad, "absmax", step), _value_at(run, bad, "norm", step))


def _value_at(run: RunReader, bad: BadRow, statistic: str, step: int) -> float | None:
    try:
        series = run.series(bad.target, bad.quantity, statistic, bad.rank)
    except ConfigError:
        return None  # the columns it needs were not recorded
    return float(series.values[np.searchsorted(series.steps, step)])


def _inputs_were_finite(run: RunReader, bad: BadRow) -> bool | None:
    module, _, side = bad.target.rpartition(":")
    if bad.quantity != "activation" or not side.startswith("output"):
        return None
    frame = run.frame(bad.step, bad.quantity, bad.rank)
    names, micro_steps = frame.column("target").to_pylist(), numbers(frame.column("micro_step"))
    is_input = np.array([name.startswith(f"{module}:input") for name in names], np.bool_)
    at = np.flatnonzero(is_input & (micro_steps == bad.micro_step))
    if not len(at):
        return None
    rows = summaries(take(frame, at))
    is_bad = (np.nan_to_num(rows[:, NANS]) > 0) | (np.nan_to_num(rows[:, INFS]) > 0)
    return not (is_bad & ~are_masks([names[index] for index in at], rows)).any()
