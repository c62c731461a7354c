"""Norms of whole tensors: what the shards of all ranks come to, as an event file beside those of the ranks.

Ranks do not communicate during training, so a rank's event file has the norms of its shards. The run has all of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from vario.compat.mindformers.numbers import MOMENTS
from vario.core.event_file import EventFile

FOLDER = "all_ranks"


class StoredRun(Protocol):
    """What is read of a run: `vario.open_run` returns one."""

    def quantities(self, rank: Any) -> list[str]:
        """Return what was recorded by a rank, or by `"all"`."""

    def targets(self, quantity: str) -> list[str]:
        """Return the names of a quantity's rows."""

    def series(self, target: str, quantity: str, statistic: str) -> Any:
        """Return steps and values, merged over ranks."""


def write_whole(run: StoredRun, tensorboard_dir: str | os.PathLike[str]) -> Path:
    """Write `weight_norm`, `grad-norm`, `adam_m_norm/...` and `adam_v_norm/...` over all ranks to `all_ranks`.

    Returns the event file. The totals are over what was recorded of a step: with `target`, moments are the chosen ones.
    """
    steps: dict[int, dict[str, float]] = {}
    for tag, curve in _curves(run):
        for step, value in curve.items():
            steps.setdefault(step, {})[tag] = value
    file = EventFile(Path(tensorboard_dir) / FOLDER, time.time())
    try:
        for step in sorted(steps):
            file.add_scalars(tuple(steps[step]), list(steps[step].values()), step + 1, time.time())
    finally:
        file.close()
    return file.path


def _curves(run: StoredRun) -> Iterator[tuple[str, Mapping[int, float]]]:
    recorded = run.quantities("all")
    for tag, quantity in (("weight_norm", "weight"), ("grad-norm", "gradient")):
        if quantity not in recorded:
            continue
        squares: dict[int, float] = {}
        for target in run.targets(quantity):
            for step, value in _norms(run, target, quantity).items():
                squares[step] = squares.get(step, 0.0) + value * value
        yield tag, {step: total**0.5 for step, total in squares.items()}
    for target in run.targets("moment") if "moment" in recorded else ():
        parameter, _, moment = target.rpartition(":")
        if moment in MOMENTS:
            yield f"{MOMENTS[moment]}/{parameter}", _norms(run, target, "moment")


def _norms(run: StoredRun, target: str, quantity: str) -> dict[int, float]:
    found = run.series(target, quantity, "norm")
    return dict(zip(map(int, found.steps), map(float, found.values), strict=True))
