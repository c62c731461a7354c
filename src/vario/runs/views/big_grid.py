"""All series of a quantity that has very many, at a part of the memory: one statistic after the other."""

from __future__ import annotations

import numpy as np

from vario.errors import ConfigError
from vario.runs.reader import RunReader
from vario.runs.views.grid import Grid, Values
from vario.runs.views.heat import read_heat

STATISTICS = ("rms", "absmax", "mean", "zeros")
"""Those of a Grid."""
FEW_CELLS = 500_000
"""Up to so many numbers a Grid is read at once: that takes several hundred bytes for each."""
MOST_TARGETS = 10_000_000


def read_big_grid(run: RunReader, quantity: str, first_step: int) -> Grid:
    """As `read_grid`, in model order instead of the order of observation, and to seven digits."""
    found: dict[str, Values] = {}
    targets: tuple[str, ...] = ()
    steps = np.zeros(0, np.int64)
    bad = np.zeros((0, 0), np.bool_)
    for statistic in STATISTICS:
        try:
            heat = read_heat(run, quantity, statistic, first=first_step, rows=MOST_TARGETS, columns=MOST_TARGETS)
        except ConfigError:
            continue  # the columns it needs were not recorded
        if not np.isnan(heat.values).all():
            found[statistic] = heat.values.astype(np.float64)
        steps, targets, bad = heat.last, heat.targets, heat.bad > 0
    return Grid(quantity, targets, np.arange(len(targets), dtype=np.float64), steps, found, bad)
