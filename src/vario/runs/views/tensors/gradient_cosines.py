"""How much gradients agree: those of consecutive steps, and the local ones of ranks, from their random projections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vario.core.quantities import GRADIENT_COSINE, GRADIENT_SKETCH, LOCAL_SKETCH
from vario.core.records import BATCH_DIMENSIONS
from vario.core.text import number
from vario.runs.files.arrays import numbers
from vario.runs.reader import RunReader

Values = npt.NDArray[np.float64]

SIZE = 512
"""Numbers of a projection, where no rank's tell."""
MOST_STEPS = 64
"""The last ones that count."""
MOST_RANKS = 64
"""Ranks that are compared, evenly spread if there are more."""


@dataclass(frozen=True)
class RankCosines:
    """The cosines between the local gradients of ranks that train the same part of the model."""

    ranks: Sequence[int]
    steps: Sequence[int]
    by_step: Sequence[float]
    """The mean over all pairs of ranks, by step."""
    by_rank: Mapping[int, float]
    """The mean of a rank with all others, over these steps."""

    @property
    def mean(self) -> float:
        """The mean over all pairs and steps."""
        return float(np.mean(self.by_step))


@dataclass(frozen=True)
class GradientCosines:
    """Cosines of the last recorded steps."""

    consecutive: Sequence[float]
    """Between gradients of consecutive steps, by the second of them."""
    steps: Sequence[int]
    between_ranks: RankCosines | None
    error: float
    """The standard error of one cosine near 0; that of the mean over n steps is smaller by sqrt(n)."""

    @property
    def text(self) -> str:
        """Both in one line."""
        parts = []
        if len(self.consecutive):
            usual = number(float(np.mean(self.consecutive)), 2)
            pairs = "pair" if len(self.steps) == 1 else "pairs"
            parts.append(f"consecutive gradients {usual} ({len(self.steps)} {pairs} of steps)")
        ranks = self.between_ranks
        if ranks is not None:
            text = f"local gradients of {len(ranks.ranks)} ranks {number(ranks.mean, 2)} ({len(ranks.steps)} steps)"
            lowest = min(ranks.by_rank, key=lambda rank: ranks.by_rank[rank])
            if len(ranks.ranks) > 2:
                text += f", lowest of rank {lowest}: {number(ranks.by_rank[lowest], 2)}"
            parts.append(text)
        return ", ".join(parts) + f"; +- {number(self.error, 1)} each"


def read_gradient_cosines(run: RunReader) -> GradientCosines | None:
    """Read the cosines of a run; None if the quantity `gradient_sketch` was not recorded."""
    if not run.ranks:
        return None
    first = run.ranks[0]
    steps: Sequence[int] = ()
    consecutive: Sequence[float] = ()
    if "scalar" in run.quantities(first) and GRADIENT_COSINE in run.targets("scalar", rank=first):
        series = run.series(GRADIENT_COSINE, "scalar", rank=first)
        steps = [int(step) for step in series.steps[-MOST_STEPS:]]
        consecutive = [float(value) for value in series.values[-MOST_STEPS:]]
    between, size = _between_ranks(run)
    if not len(consecutive) and between is None:
        return None
    return GradientCosines(consecutive, steps, between, float(1 / np.sqrt(size)))


def _between_ranks(run: RunReader) -> tuple[RankCosines | None, int]:
    having = [rank for rank in run.ranks if GRADIENT_SKETCH in run.quantities(rank)]
    chosen = having[:: -(-len(having) // MOST_RANKS)] if having else []
    if len(chosen) < 2:
        return None, SIZE
    steps = set.intersection(*(set(run.steps(GRADIENT_SKETCH, rank).tolist()) for rank in chosen))
    groups = _groups(run, chosen)
    by_step, kept = [], []
    sums, weights = dict.fromkeys(chosen, 0.0), dict.fromkeys(chosen, 0)
    size = SIZE
    for step in sorted(steps)[-MOST_STEPS:]:
        projections = {rank: _projection(run, step, rank) for rank in chosen}
        size = max(map(len, projections.values()))
        pairs = 0
        total = 0.0
        for group in groups:
            cosines = cosine_table([projections[rank] for rank in group])
            if cosines is None:
                continue
            others = len(group) - 1
            for rank, row in zip(group, cosines, strict=True):
                sums[rank] += float(row.sum() - 1) / others
                weights[rank] += 1
            total += float(np.triu(cosines, 1).sum())
            pairs += len(group) * others // 2
        if pairs:
            by_step.append(total / pairs)
            kept.append(int(step))
    by_rank = {rank: sums[rank] / weights[rank] for rank in chosen if weights[rank]}
    return (RankCosines([*by_rank], kept, by_step, by_rank) if kept else None), size


def cosine_table(projections: Sequence[Values]) -> Values | None:
    """Return the cosine of each pair; None if one of them is missing, zero or not finite."""
    if len(projections) < 2 or len({len(one) for one in projections}) > 1:
        return None
    table = np.stack(projections)
    sizes = np.linalg.norm(table, axis=1, keepdims=True)
    if not table.size or not np.isfinite(sizes).all() or not (sizes > 0).all():
        return None
    table = table / sizes
    found: Values = table @ table.T
    return found


def _projection(run: RunReader, step: int, rank: int) -> Values:
    table = run.frame(step, GRADIENT_SKETCH, rank)
    prefix = f"{LOCAL_SKETCH}:"
    places = [int(target.removeprefix(prefix)) for target in table["target"].to_pylist() if target.startswith(prefix)]
    found = np.zeros(len(places))
    found[places] = numbers(table["sum"])[: len(places)]
    return found


def _groups(run: RunReader, ranks: Sequence[int]) -> list[list[int]]:
    """Ranks that do the same work on different data."""
    coordinates = {state.rank: state.coordinates for state in run.noted_rank_states}
    groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for rank in ranks:
        others = {name: at for name, at in coordinates.get(rank, {}).items() if name not in BATCH_DIMENSIONS}
        groups.setdefault(tuple(sorted(others.items())), []).append(rank)
    return [group for group in groups.values() if len(group) > 1]
