"""A recorded run as one table: steps down, series across. What detectors that know only numbers look at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

import vario
from vario.core.records import COLUMNS, COUNT, INFS, NANS, SUM, SUM_SQUARES, ZEROS, merge

Values = npt.NDArray[np.float64]
STAGES = ("activation", "activation_gradient", "gradient_local", "gradient", "moment", "weight")
"""Forward, backward, optimizer: what is looked at, in the order in which a step produces it."""


@dataclass(frozen=True)
class Name:
    """What a column of the table is of."""

    quantity: str
    target: str
    rank: int


@dataclass(frozen=True)
class SeriesTable:
    """All series of a run; NaN where a series has no row at a step."""

    steps: npt.NDArray[np.int64]
    names: tuple[Name, ...]
    norm: Values
    mean: Values
    rms: Values
    zeros: Values
    """Share of elements that are zero."""
    bad: Values
    """Elements that are NaN or infinite."""
    loss: Values
    grad_norm: Values
    """Of all parameters together; NaN where the loop did not log it."""

    def columns(self, *quantities: str) -> npt.NDArray[np.int64]:
        return np.array([i for i, name in enumerate(self.names) if name.quantity in quantities], np.int64)


@lru_cache(maxsize=8)
def read_table(path: Path) -> SeriesTable:
    """Read every series of a run, all ranks."""
    run = vario.open_run(path)
    steps = run.steps("scalar", "all")
    names: list[tuple[Name, int]] = []
    blocks: list[Values] = []
    for quantity in STAGES:
        for rank in run.ranks:
            if quantity in run.quantities(rank):
                _add(run, quantity, rank, steps, names, blocks)
    rows = np.concatenate(blocks) if blocks else np.zeros((0, len(steps), len(COLUMNS)))
    order = sorted(range(len(names)), key=lambda i: (STAGES.index(names[i][0].quantity), names[i][1]))
    rows = rows[order].transpose(1, 0, 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        count = rows[..., COUNT]
        return SeriesTable(
            steps,
            tuple(names[i][0] for i in order),
            np.sqrt(rows[..., SUM_SQUARES]),
            rows[..., SUM] / count,
            np.sqrt(rows[..., SUM_SQUARES] / count),
            rows[..., ZEROS] / count,
            rows[..., NANS] + rows[..., INFS],
            _scalar(run, "loss", steps),
            _scalar(run, "grad_norm", steps),
        )


def _add(
    run: vario.Run,
    quantity: str,
    rank: int,
    steps: npt.NDArray[np.int64],
    names: list[tuple[Name, int]],
    blocks: list[Values],
) -> None:
    table = run.to_arrow(quantity, rank).unify_dictionaries().combine_chunks()
    target = table.column("target").combine_chunks()
    codes = target.indices.to_numpy().astype(np.int64)
    labels = target.dictionary.to_pylist()
    places = np.searchsorted(steps, table.column("step").to_numpy())
    columns = [table.column(name).to_numpy(zero_copy_only=False).astype(np.float64) for name in COLUMNS]
    groups = codes * len(steps) + places
    merged = merge(np.stack(columns, 1), groups, len(labels) * len(steps)).reshape(len(labels), len(steps), -1)
    merged[merged[..., COUNT] == 0] = np.nan
    first: dict[int, int] = {}
    for code, order in zip(codes.tolist(), table.column("order").to_pylist(), strict=True):
        first.setdefault(code, order)
    for code, label in enumerate(labels):
        if code in first:
            names.append((Name(quantity, label, rank), first[code]))
            blocks.append(merged[code : code + 1])


def _scalar(run: vario.Run, name: str, steps: npt.NDArray[np.int64]) -> Values:
    found = np.full(len(steps), np.nan)
    if name in run.targets("scalar"):
        series = run.series(name, "scalar")
        found[np.searchsorted(steps, series.steps)] = series.values
    return found
