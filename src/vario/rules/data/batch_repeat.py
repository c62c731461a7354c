"""Batches that came before, or that several ranks get alike."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.text import number
from vario.rules import Finding, RanksStep, Step, rule
from vario.rules.api.series_state import Streak


@rule("exact", name="data_repeat", needs="batch_repeated")
def batch_repeat(step: Step, share: float = 0.5, distance: float = 0.1, steps: int = 2) -> Iterator[Finding]:
    """A batch whose rows were seen a moment ago.

    Why: the loader is stuck, its workers share a seed, or it was started again: the model learns a few rows by heart.
    Epochs that follow each other are told apart: their rows come back after all others.

    Next: Check the sampler, the seeds of the loader's workers (`worker_init_fn`), and where the loader goes on after a
    resume.
    """
    repeated = step.scalars.get("batch_repeated")
    if repeated is None:
        return
    near = step.scalars.get("batch_distance", np.inf)
    count = step.memory.get("data_repeat", Streak()).follow("batch", repeated >= share and near < distance)
    if count >= steps:
        yield Finding(
            text=f"{number(100 * repeated, 3)} % of the batch's rows were seen a moment ago, {count} times now",
            quantity="scalar",
            target="batch_repeated",
            value=repeated,
            high=share,
            scope="batch",
            strength=repeated,
        )


@rule("exact", name="data_shared", over="ranks")
def batch_shared(step: RanksStep, steps: int = 2) -> Iterator[Finding]:
    """The same batch on two ranks that should have different ones.

    Why: ranks that see the same rows do the same work twice; the batch is smaller than you think.

    Next: Check `rank` and `num_replicas` of the `DistributedSampler`, and that each rank has a seed of its own.
    """
    ranks = [rank for rank in step.ranks if "batch_checksum" in step.steps[rank].scalars]
    sums = [step.steps[rank].scalars["batch_checksum"] for rank in ranks]
    firsts: dict[float, int] = {}
    same_as = {rank: firsts.setdefault(value, rank) for rank, value in zip(ranks, sums, strict=True)}
    names = tuple(str(rank) for rank in ranks)
    is_same = np.array([same_as[rank] != rank for rank in ranks], np.bool_)
    count = step.memory.get("data_shared", Streak()).update(names, is_same) if ranks else np.zeros(0)
    for rank, streak in zip(ranks, count, strict=True):
        if streak >= steps:
            yield Finding(
                text=f"rank {rank} has had the same batch as rank {same_as[rank]} for {int(streak)} steps",
                quantity="scalar",
                target="batch_checksum",
                value=step.steps[rank].scalars["batch_checksum"],
                scope="rank",
                rank=rank,
                strength=streak,
            )
