"""Ranks beside each other, and two runs beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from vario.runs.compare.difference import Differing
from vario.runs.compare.divergence import Place
from vario.runs.files.status import RankState
from vario.web.bodies.charts import RankCurve


@dataclass(frozen=True)
class Slowest:
    """The rank that the others wait for."""

    rank: int
    host: str
    share: float
    """By how much of their time it is slower than the others, at the median: 0.5 is half as much again."""
    seconds: float
    usual_seconds: float
    by: str
    """The plain number that tells."""


class Desync(TypedDict):
    """Where ranks that should hold the same began to differ."""

    step: int
    target: str
    quantity: str
    checksums: Mapping[int, int]
    """What each rank has, by rank."""
    ranks: list[int]
    """Those that hold something else than most do."""


class Ranks(TypedDict):
    """All ranks of a run beside each other."""

    ranks: list[RankState]
    world_size: int
    curves: list[RankCurve]
    slowest: Slowest | None
    desync: Desync | None


class SettingPair(TypedDict):
    """An option or a version that differs; null where a run does not have it."""

    a: str | None
    b: str | None


class Comparison(TypedDict):
    """Where two runs part, and what differs most."""

    parting: Place | None
    """Where they differ by more than noise for the first time."""
    first_unequal: Place | None
    """Where they are not equal to the bit for the first time."""
    text: str
    num_steps: int
    num_targets: int
    noise: str
    """none, rounding or own: what was taken for noise."""
    renamed: str
    differences: Sequence[Differing]
    unmatched: list[str]
    settings: Mapping[str, SettingPair]
