"""How the speed of a run compares with that of a baseline, rank for rank: 1 is linear scaling."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vario.core.records import BATCH_DIMENSIONS
from vario.core.text import number
from vario.runs.reader import RunReader
from vario.runs.views.speed.throughput import read_throughput
from vario.runs.views.speed.time_split import STEP, first_step_of_interest, read_numbers


@dataclass(frozen=True)
class Linearity:
    """Two runs' speeds, of one rank each: of all ranks together, divided by their number."""

    unit: str
    """`tokens/s`, `samples/s`, or `steps/s` if neither is known of both."""
    per_rank: float
    num_ranks: int
    baseline: str
    """The other run's name."""
    baseline_per_rank: float
    baseline_ranks: int
    share: float
    """How fast a rank is, relative to one of the baseline."""

    @property
    def text(self) -> str:
        """The comparison in one line."""
        here, there = _each(self.num_ranks), _each(self.baseline_ranks)
        speeds = f"{number(self.per_rank, 3)} {self.unit} {here}, {number(self.baseline_per_rank, 3)} {there}"
        said = f"{100 * self.share:.0f} % of the speed of '{self.baseline}'"
        if self.num_ranks != self.baseline_ranks:
            total = self.share * self.num_ranks / self.baseline_ranks
            said += f" rank for rank, {number(total, 3)} times as fast in all"
        return f"{said} ({speeds})"


def _each(num_ranks: int) -> str:
    return "on one rank" if num_ranks == 1 else f"on each of {num_ranks:,} ranks"


def read_linearity(run: RunReader, baseline: RunReader) -> Linearity | None:
    """Compare two runs over their last steps; None if the speed of one is not known."""
    speeds, others = _speeds(run), _speeds(baseline)
    unit = next((unit for unit in speeds if unit in others), None)
    if unit is None:
        return None
    ranks, baseline_ranks = (max(1, one.world_size) for one in (run, baseline))
    share = speeds[unit] / others[unit]
    return Linearity(unit, speeds[unit], ranks, baseline.name, others[unit], baseline_ranks, share)


def _speeds(run: RunReader) -> dict[str, float]:
    """What a rank does in a second, by unit; ranks that share one batch have their part of it."""
    found = read_throughput(run)
    share = _batches(run) / max(1, run.world_size)
    speeds: dict[str, float | None] = {}
    if found is not None:
        speeds = {"tokens/s": found.tokens_per_second, "samples/s": found.samples_per_second}
    rank = next(iter(run.ranks), None)
    if rank is not None and "scalar" in run.quantities(rank):
        _, read = read_numbers(run, rank, first_step_of_interest(run, rank), (STEP,))
        mean = float(np.nanmean(read[STEP])) if len(read.get(STEP, ())) else 0.0
        speeds["steps/s"] = 1.0 / mean / share if mean > 0 else None
    return {unit: each * share for unit, each in speeds.items() if each}


def _batches(run: RunReader) -> int:
    """How many ranks train on batches of their own."""
    sizes = [size for name, size in run.mesh.items() if name in BATCH_DIMENSIONS]
    return math.prod(sizes) if sizes else max(1, run.world_size)
