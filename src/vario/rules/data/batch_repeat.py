"""Batches that repeat, or that several ranks share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.text import number
from vario.rules import Finding, RanksStep, Step, rule
from vario.rules.api.series_state import Last, Streak


@rule("exact", name="data_repeat", needs="batch_repeated", stage="batch")
def batch_repeat(step: Step, share: float = 0.5, distance: float = 0.1, steps: int = 2) -> Iterator[Finding]:
    """A batch whose rows were in a recent batch.

    Why: the loader is stuck, was restarted, or its workers share a seed, so the model memorises a few rows. A new epoch
    does not count: its rows return only after all others. If only part of a batch repeats, this must begin suddenly and
    last a few steps, and is a warning.

    Cause (batch): a stuck or reset data loader

    Points to: data 6

    Next: Check the sampler, the seeds of the loader's workers (`worker_init_fn`), and where the loader continues after
    a resume.
    """
    repeated = step.scalars.get("batch_repeated")
    if repeated is None:
        return
    usual = step.scalar_trend("batch_repeated", linear=True, floor=0.02)
    near = step.scalars.get("batch_distance", np.inf)
    is_new = usual is None or usual.age == 0 or repeated > AT_ONCE * usual.usual
    count = step.memory.get("data_repeat", Streak).follow("batch", repeated >= share and near < distance)
    is_whole = repeated >= MOST
    # What a model answers itself repeats more and more as it becomes sure, and some rows are alike by chance.
    part = step.memory.get("data_repeat part", Streak)
    goes_on = part.one("count", "batch") > 0
    looks = part.follow("batch", count > 0 and (is_new or goes_on))
    began = step.memory.get("data_repeat began", Last)
    row = began.row("batch")
    if looks == 1:
        began["value"][row] = float(step.number)
    # Under an overhead budget batches are looked at in some steps only.
    lasts = looks > steps and step.number - began["value"].item(row) >= LASTING
    if count >= steps and (is_whole or lasts):
        yield Finding(
            text=f"{number(100 * repeated, 3)} % of the batch's rows were in a recent batch, {count} steps in a row",
            quantity="scalar",
            target="batch_repeated",
            value=repeated,
            high=share,
            scope="batch",
            strength=repeated,
            severity="page" if is_whole else "warn",
        )


MOST = 0.9
"""If this share of a batch was there before, it is no chance."""
AT_ONCE, LASTING = 2.0, 5
"""A part of a batch that repeats is a fault if that began at once, and lasts so many steps."""
WHOLE = 0.75
"""If more of a batch repeats than this, all of it does: that is another finding."""
FROM_THE_START = 24
"""A row that is stuck by this step has been in every batch since the first."""
RARE = 0.03
"""One row in so many may be one that data have often, such as a blank, one at the ends of a range, or an answer that a
policy gives ever more often."""


@rule("exact", name="data_stuck_rows", needs="batch_stuck", stage="batch")
def batch_stuck_rows(step: Step) -> Iterator[Finding]:
    """A few rows that are in every batch, while the others change.

    Why: part of the loader is stuck: a worker, a shard, a buffer that is not refilled. The model memorises these rows,
    and the batch is smaller than you think. Rows that are in every batch from the first step may be intended, and one
    row in fifty may simply be common in the data: these are notes.

    Cause (batch): part of the data loader is stuck, such as one worker or one shard

    Points to: data 6

    Next: Look at the rows that do not change, and find the worker or shard that they come from.
    """
    share = step.scalars.get("batch_stuck", 0.0)
    if 0 < share <= WHOLE:
        yield Finding(
            f"{number(100 * share, 3)} % of the batch's rows were in each of the last batches, the others change",
            "scalar",
            "batch_stuck",
            share,
            high=0.0,
            scope="batch",
            strength=share,
            severity="note" if step.number < FROM_THE_START or share < RARE else "warn",
        )


@rule("exact", name="data_shared", over="ranks", needs="batch_checksum", stage="batch")
def batch_shared(step: RanksStep, steps: int = 2) -> Iterator[Finding]:
    """The same batch on two ranks that should get different ones.

    Why: ranks that get the same rows do the same work twice, and the effective batch is smaller than you think.

    Cause: the sampler ignores the rank

    Points to: data 4, ranks 3

    Next: Check `rank` and `num_replicas` of the `DistributedSampler`, and that each rank has its own seed.
    """
    ranks = [rank for rank in step.ranks if "batch_checksum" in step.steps[rank].scalars]
    sums = [step.steps[rank].scalars["batch_checksum"] for rank in ranks]
    firsts: dict[float, int] = {}
    same_as = {rank: firsts.setdefault(value, rank) for rank, value in zip(ranks, sums, strict=True)}
    names = tuple(str(rank) for rank in ranks)
    is_same = np.array([same_as[rank] != rank for rank in ranks], np.bool_)
    count = step.memory.get("data_shared", Streak).update(names, is_same) if ranks else np.zeros(0)
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
