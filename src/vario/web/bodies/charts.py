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
    """In model order; for a row with several targets, the first."""
    groups: Sequence[int]
    """How many targets each row represents."""
    first: Steps
    """The first step of each column."""
    last: Steps
    """The last step of each column, inclusive."""
    rows: int
    columns: int
    is_rollup: bool
    """Whether a shorter range of steps may show more."""
    low: float | None
    """The smallest magnitude above 0."""
    high: float | None
    """The largest magnitude."""
    step: int | None
    """The last step."""
    kinds: Sequence[str]
    """For each row `indices` (token ids) or `mask` if its numbers are no sizes, else empty; empty if all are sizes."""
    left_out: Sequence[str]
    """Token ids and masks that share a row with sizes: of their numbers only NaN is in the row."""


class HeatHead(_HeatShape, total=False):
    """A heat map without its numbers."""

    search: str
    """Only targets whose names contain these words are included."""
    difference: Literal["ratio", "minus"]
    """For two runs: log10 of the ratio b/a, or b minus a."""


class HeatTable(HeatHead):
    """A heat map in JSON."""

    values: list[Floats]
    """Row by row."""
    bad: list[tuple[int, int]]
    """Row and column of each NaN or Inf."""


class RankCurve(TypedDict):
    """One statistic of one target over buckets of steps."""

    quantity: str
    target: str
    statistic: str
    rank: int | str
    steps: Steps
    """The last step of each bucket."""
    low: Floats
    """The lowest value of each bucket."""
    high: Floats
    """The highest value of each bucket."""
    last: Floats
    """The value at the last step of each bucket."""
    bad: npt.NDArray[np.bool_]
    """Where there is a NaN or Inf."""
    times: Floats
    """Unix seconds at which the last step of each bucket ended."""
    is_whole: bool
    """Whether every recorded point is included."""


class Curve(RankCurve):
    """A curve, and the run it belongs to."""

    run: str


class SeriesAnswer(TypedDict):
    """The requested curves, by run."""

    curves: list[Curve]
    text: str
    """What is missing, if something is."""


class Targets(TypedDict):
    """Names of targets."""

    targets: list[str]
    total: int
    """The total number; if there are very many, only the first are listed."""
