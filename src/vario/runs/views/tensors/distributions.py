"""Distributions of tensors as stored beside their rows: of one tensor over steps, or of all at one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vario.core.elements.bins import COUNTED, DETAIL, NUM_BINS, Counts, bin_ends
from vario.core.errors import ConfigError
from vario.core.records import HELD
from vario.runs.files.arrays import numbers, take
from vario.runs.files.bin_rows import decoded, with_bins
from vario.runs.files.budget import Budget
from vario.runs.files.row_files import Part, Stream
from vario.runs.reader import Rank, RunReader

NONE = (
    "no distributions were recorded. They are in steps of the quantity `distribution`; it is on by default, every 50th "
    "step (docs/precision.md)"
)


@dataclass(frozen=True)
class Distribution:
    """How one tensor's elements were distributed, over steps."""

    target: str
    quantity: str
    rank: Rank
    steps: npt.NDArray[np.int64]
    counts: Counts
    """A row per step, with the bins of `vario.core.elements.bins`; micro-steps are added up."""

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True)
class StepDistributions:
    """The distributions of all tensors of one quantity at one step."""

    quantity: str
    step: int
    rank: Rank
    targets: list[str]
    counts: Counts
    """A row per target."""


def read_distribution(run: RunReader, target: str, quantity: str, rank: Rank = "all") -> Distribution:
    """Read the distributions of one tensor; over all ranks shards add up, and replicas count once.

    Raises ConfigError for a tensor without any.
    """
    try:
        name, tables = run.stored_rows(target, quantity, ["step", DETAIL], rank)
    except ConfigError:
        if quantity in run.quantities("all") and target in run.targets(quantity):
            raise ConfigError(f"distribution: {quantity} of '{target}': {NONE}") from None
        raise
    kept = [with_bins(table) for table in tables]
    if not any(table.num_rows for table in kept):
        raise ConfigError(f"distribution: {quantity} of '{name}': {NONE}")
    steps = np.concatenate([numbers(table.column("step")) for table in kept])
    counts = np.concatenate([decoded(run.path, table) for table in kept])
    points, groups = np.unique(steps, return_inverse=True)
    merged = np.zeros((len(points), NUM_BINS), np.int64)
    np.add.at(merged, groups.reshape(-1), counts)
    return Distribution(name, quantity, rank, points, merged)


def read_step(run: RunReader, quantity: str, step: int | None = None, rank: Rank = "all") -> StepDistributions | None:
    """Read the distributions of all tensors of a quantity at a step (default: the latest); None if there are none."""
    ranks = [number for number in (run.ranks if rank == "all" else [rank]) if quantity in run.quantities(number)]
    if step is None:
        latest = [found for number in ranks if (found := _latest(run, number, quantity)) is not None]
        # What all ranks have: one may be ahead of the others.
        step = min(latest, default=None)
    if step is None:
        return None
    totals: dict[str, Counts] = {}
    owners: dict[tuple[str, int], int] = {}
    budget = Budget()
    for number in sorted(ranks):
        reader, columns = run.reader(number, quantity), ["micro_step", "order", "target", DETAIL]
        table = with_bins(reader.read(columns, run.sessions, step=step, budget=budget))
        if not table.num_rows:
            continue
        table = take(table, np.lexsort((numbers(table.column("order")), numbers(table.column("micro_step")))))
        for target, counts in zip(table.column("target").to_pylist(), decoded(run.path, table), strict=True):
            part = run.layout.counted(target, number) if rank == "all" and quantity in HELD else None
            if part is not None and (part < 0 or owners.setdefault((target, part), number) != number):
                continue
            totals[target] = totals[target] + counts if target in totals else counts
    if not totals:
        return None
    return StepDistributions(quantity, step, rank, list(totals), np.stack(list(totals.values())))


def quantities_with_bins(run: RunReader) -> list[str]:
    """Return the recorded quantities whose rows may have distributions."""
    return [name for name in run.quantities("all") if name in COUNTED] if run.ranks else []


def quantities_with_detail(run: RunReader) -> list[str]:
    """Return the quantities whose files have a column for distributions."""
    return [
        name
        for name in quantities_with_bins(run)
        for rank in run.ranks
        if name in run.quantities(rank)
        if any(row_file.has_detail for row_file, _ in run.reader(rank, name).shown(run.sessions))
    ]


def _latest(run: RunReader, rank: int, quantity: str) -> int | None:
    """Return the newest step with distributions; reads the newest files first."""
    files: Sequence[tuple[Stream | Part, int | None]] = list(run.reader(rank, quantity).shown(run.sessions))
    for row_file, limit in reversed(files):
        if not row_file.has_detail:
            continue
        table = with_bins(row_file.read(["step", DETAIL]))
        steps = numbers(table.column("step"))
        steps = steps if limit is None else steps[steps < limit]
        if len(steps):
            return int(steps.max())
    return None


def quantities_of(run: RunReader, target: str) -> list[str]:
    """Return the quantities with distributions in which a target, or the output of a module, was recorded."""
    names = (target, f"{target}:output")
    return [name for name in quantities_with_bins(run) if not set(names).isdisjoint(run.targets(name))]


def long_table(found: Distribution) -> Any:
    """Return a distribution as an Arrow table with a row for each bin that has elements."""
    import pyarrow as pa

    at, bins = np.nonzero(found.counts)
    low, high = bin_ends()
    return pa.table(
        {
            "step": pa.array(found.steps[at]),
            "quantity": pa.array([found.quantity] * len(at), pa.string()),
            "target": pa.array([found.target] * len(at), pa.string()),
            "low": pa.array(low[bins]),
            "high": pa.array(high[bins]),
            "count": pa.array(found.counts[at, bins]),
        }
    )
