"""Comparisons of ranks and of two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from vario.runs.compare.difference import Differing
from vario.runs.compare.divergence import Place
from vario.runs.files.status import RankState
from vario.runs.findings.rank_verdict import RankVerdict
from vario.web.bodies.charts import RankCurve


class Desync(TypedDict):
    """Where replicas began to differ between ranks."""

    step: int
    target: str
    quantity: str
    checksums: Mapping[int, int]
    """The checksum of each rank."""
    ranks: list[int]
    """The ranks that differ from the majority."""


class Ranks(TypedDict):
    """All ranks of a run, compared."""

    ranks: list[RankState]
    world_size: int
    curves: list[RankCurve]
    verdict: RankVerdict | None
    """Which rank the others wait for, and what each does with a step; null if there is one rank."""
    desync: Desync | None


class SettingPair(TypedDict):
    """An option or a version that differs; null if a run does not have it."""

    a: str | None
    b: str | None


class Comparison(TypedDict):
    """Where two runs diverge, and what differs most."""

    divergence: Place | None
    """The first place at which they differ by more than noise."""
    first_unequal: Place | None
    """The first place at which they are not bit-identical."""
    text: str
    num_steps: int
    num_targets: int
    noise: str
    """The kind of noise: none, rounding or own."""
    renamed: str
    differences: Sequence[Differing]
    unmatched: list[str]
    settings: Mapping[str, SettingPair]
