"""Charts over many runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from vario.web.bodies.numbers import Floats


class OverlayLine(TypedDict):
    """A line of a chart: a run, or the mean of several with their range."""

    label: str
    run: str | None
    """Null if it stands for several."""
    num_runs: int
    x: Floats
    """Steps, seconds since the run's start, or the chosen number."""
    low: Floats
    high: Floats
    value: Floats
    best: float | None


class OverlayChart(TypedDict):
    """One logged number of many runs."""

    number: str
    lines: list[OverlayLine]
    text: str
    """What the lines are, where that is not one line for each run."""


class ChartArrangement(TypedDict):
    """Which charts, in which order, and how each is drawn; the fields are those of the page's address."""

    numbers: Sequence[str]
    """The logged numbers, one chart each."""
    draw: Sequence[str]
    """`NUMBER|log or linear|SMOOTHING|wide or empty` for charts that differ from the rest."""
    by: str
    along: str
    best: bool
    log: bool
    smooth: float


class StoredCharts(TypedDict):
    """The charts that were stored for the served folder."""

    arrangement: ChartArrangement | None
    """Null if nobody has stored any."""


class Overlays(TypedDict):
    """The requested charts."""

    charts: list[OverlayChart]
