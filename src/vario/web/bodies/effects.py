"""Which settings mattered for a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict


class SettingMean(TypedDict):
    """The mean result of the runs with one value of a setting."""

    value: str
    mean: float
    runs: int


class SettingEffect(TypedDict):
    """How a result goes along with one setting."""

    key: str
    title: str
    kind: str
    """number or text."""
    num_runs: int
    correlation: float | None
    """Spearman's rank correlation, for a number."""
    linear: float | None
    """Pearson's correlation; with the logarithm of the setting if `is_log`."""
    share: float | None
    """Of a setting that is no number: the share of the variance between its values."""
    importance: float
    """From 0 to 1."""
    is_log: bool
    means: list[SettingMean]
    same_as: Sequence[str]
    """Other settings that change exactly with this one."""
    text: str


class EffectRow(TypedDict):
    """One run."""

    run: str
    name: str
    result: float
    values: Sequence[Any]
    """Of each setting."""


class SettingEffects(TypedDict):
    """What mattered for a result, most first."""

    result: str
    title: str
    is_better_higher: bool | None
    settings: list[SettingEffect]
    rows: list[EffectRow]
