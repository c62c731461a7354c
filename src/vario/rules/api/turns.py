"""How long something may go on by chance that comes and goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from vario.rules.api.series_state import Flags, PerSeries, Values

CHANCE = 1e-6
"""How likely so long a streak may be, if looks are drawn as they were before."""


class Turns(PerSeries):
    """How often something was true of each series: heads that tasks take in turn are without a gradient for a while."""

    fields: ClassVar[Mapping[str, float]] = {"looks": 0.0, "times": 0.0, "now": 0.0}

    def longest(self, names: Sequence[str], is_true: Flags) -> Values:
        """Return how long a streak must be to be no chance, from those that have ended; 0 if there was none yet."""
        rows = self.at(names)
        now, looks, times = self["now"][rows], self["looks"][rows], self["times"][rows]
        share = (times + 0.5) / (looks + 1)
        self["looks"][rows] = np.where(is_true, looks, looks + now + 1)
        self["times"][rows] = np.where(is_true, times, times + now)
        self["now"][rows] = np.where(is_true, now + 1, 0.0)
        found: Values = np.where(times > 0, np.log(CHANCE) / np.log(np.minimum(share, 0.99)), 0.0)
        return found
