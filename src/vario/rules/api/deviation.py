"""How numbers of a step compare with their own past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Deviation:
    """How each series of one step compares with its own past."""

    targets: Sequence[str]
    values: Values
    """The observed values."""
    usual: Values
    """The usual value, in its own unit."""
    spread: Values
    """The usual distance from it (of logarithms, unless the trend is linear)."""
    distance: Values
    """The distance from the usual value; 0 if there is no past or no number."""
    z: Values
    """The distance in units of `spread`."""
    step_off: Values
    """The distance from the mean of the last few observations: large only after a sudden change."""
    gap: Values
    """The distance between the mean of the last few observations and the mean of many."""
    usual_gap: Values
    peak: Values
    """The largest past distance, decaying slowly."""
    age: Values
    """The number of earlier observations of each series."""
    warmth: Values
    """The steps each series has been known for, after ten observations; until then the number of observations."""
    is_linear: bool = False

    def low(self, index: int) -> float:
        """The lower end of the usual range."""
        return self._end(index, -3.0)

    def high(self, index: int) -> float:
        """Its upper end."""
        return self._end(index, 3.0)

    def _end(self, index: int, width: float) -> float:
        reach = width * self.spread[index]
        return float(self.usual[index] + reach if self.is_linear else self.usual[index] * np.exp(reach))

    def ratio(self, index: int) -> float:
        """The value divided by the usual value; for a linear trend, the difference."""
        return float(self.distance[index] if self.is_linear else np.exp(self.distance[index]))


class Departure(NamedTuple):
    """How one plain number compares with its own past; see Deviation."""

    value: float
    usual: float
    spread: float
    distance: float
    fast: float
    """The mean of the last few observations, this one included (of logarithms, unless the trend is linear)."""
    slow: float
    """The mean of many observations."""
    age: float
    warmth: float
