"""Finds the loss among a run's plain numbers (the logged one, or else the one vario found) and reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from vario.core.quantities import LOSS, LOSS_BACKWARD, LOSS_LOCAL
from vario.runs.reader import RunReader

LOGGED = (LOSS, "train_loss", "train/loss", "loss/train", "training_loss")
FOUND = (LOSS_LOCAL, LOSS_BACKWARD)
"""The model's own loss and the tensor backward() was called on; with several parts, `loss_backward/PART`."""
MOST_RANKS = 16
"""With more ranks, only the first is read."""


@dataclass(frozen=True)
class LossName:
    """The plain number that is a run's loss."""

    target: str
    is_found: bool
    """Whether vario found it because the script logged none."""

    @property
    def part(self) -> str:
        """The part of the model it belongs to, if several are trained against each other."""
        return self.target.partition("/")[2] if self.is_found else ""

    def ranks_to_read(self, ranks: Sequence[int]) -> int | Literal["all"]:
        """Return the ranks to read: the first for a logged loss; all for a found one, whose mean is the loss."""
        return "all" if self.is_found and 1 < len(ranks) <= MOST_RANKS else ranks[0]


def choose_losses(targets: Sequence[str], num_points: Callable[[str], int]) -> list[LossName]:
    """Return the losses of a run: the main one first, then those of other parts that are trained.

    A found curve takes precedence over a single logged point, as trainers log at the end.
    """
    found = [name for known in FOUND for name in targets if name == known or name.startswith(f"{known}/")]
    logged = [name for name in LOGGED if name in targets]
    if not logged:
        logged = [name for name in targets if _is_training_loss(name) and name not in found][:1]
    for name in logged:
        if not found or num_points(name) > 1:
            return [LossName(name, False)]
    if found:
        most = max(num_points(name) for name in found)
        # A name from the first few steps, before parts were detected, is not a part.
        return [LossName(name, True) for name in found if 2 * num_points(name) >= most or "/" in name]
    return [LossName(name, False) for name in logged]


def _is_training_loss(name: str) -> bool:
    return "loss" in name and not any(word in name for word in ("eval", "val", "test", "scale"))


@dataclass(frozen=True)
class LossSeries:
    """A loss, step by step."""

    target: str
    """The plain number it is read from."""
    is_found: bool
    """Whether vario found it because the script logged none."""
    part: str
    """The part of the model it belongs to, if several are trained against each other."""
    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]


def read_losses(run: RunReader) -> list[LossSeries]:
    """Read the loss of a run, or of each of its parts; empty if there is none."""
    ranks = run.ranks
    if not ranks or "scalar" not in run.quantities(ranks[0]):
        return []
    names = run.targets("scalar", rank=ranks[0])
    chosen = choose_losses(names, lambda name: len(run.series(name, "scalar", rank=ranks[0]).values))
    found = [(name, run.series(name.target, "scalar", rank=name.ranks_to_read(ranks))) for name in chosen]
    return [
        LossSeries(name.target, name.is_found, name.part, series.steps, series.values)
        for name, series in found
        if len(series.values)
    ]
