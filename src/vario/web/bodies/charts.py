"""Heat maps, curves, and names of targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

import numpy as np
import numpy.typing as npt

from vario.web.bodies.numbers import Floats, Steps


class _HeatShape(TypedDict):
    quantity: str
    statistic: str
    rank: int | str
    targets: Sequence[str]
    """In model order; where a row stands for several, the first of them."""
    groups: Sequence[int]
    """How many targets each row stands for."""
    first: Steps
    """The first step of each column."""
    last: Steps
    """The last step of each column, which belongs to it."""
    rows: int
    columns: int
    is_outline: bool
    """Whether a shorter range of steps may show more."""
    low: float | None
    """The smallest magnitude above 0."""
    high: float | None
    """The largest magnitude."""
    step: int | None
    """The last step."""


class HeatHead(_HeatShape, total=False):
    """What a heat map holds besides its numbers."""

    search: str
    """Only targets whose names have these words were asked for."""
    difference: Literal["ratio", "minus"]
    """Of two runs: log10 of the ratio b/a, or b minus a."""


class HeatTable(HeatHead):
    """A heat map in JSON."""

    values: list[Floats]
    """Row by row."""
    bad: list[tuple[int, int]]
    """Row and column of each NaN or Inf."""


class RankCurve(TypedDict):
    """One statistic of one target over stretches of steps."""

    quantity: str
    target: str
    statistic: str
    rank: int | str
    steps: Steps
    """The last step of each stretch."""
    low: Floats
    """The lowest value of each stretch."""
    high: Floats
    """The highest value of each stretch."""
    last: Floats
    """The value at the last step of each stretch."""
    bad: npt.NDArray[np.bool_]
    """Where a NaN or Inf was counted."""
    times: Floats
    """Unix seconds at which the last step of each stretch ended."""
    is_whole: bool
    """Whether every recorded point is there."""


class Curve(RankCurve):
    """A curve, and the run it belongs to."""

    run: str


class SeriesAnswer(TypedDict):
    """The curves that were asked for, run by run."""

    curves: list[Curve]


class Targets(TypedDict):
    """Names of targets."""

    targets: list[str]
    total: int
    """How many there are; of very many only the first are told."""
