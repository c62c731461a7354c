"""The loss of a run over its steps, whoever told it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vario.runs.reader import RunReader
from vario.runs.views.loss_names import choose_losses


@dataclass(frozen=True)
class LossSeries:
    """A loss, step by step."""

    target: str
    """The plain number behind it."""
    is_found: bool
    """Whether vario found it, and nobody logged it."""
    part: str
    """The part of the model it belongs to, where several are trained against each other."""
    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]


def read_losses(run: RunReader) -> list[LossSeries]:
    """The loss of a run, or of each of its parts; none where nothing is known of one."""
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
