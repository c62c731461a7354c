"""Which numbers of a record are forwarded: chosen by name, computed from Summaries that are there anyway."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vario.core.errors import ConfigError
from vario.core.quantities import SCALAR
from vario.core.records import Frame, StepRecord, merge
from vario.core.selector import pattern_matcher
from vario.statistics import STATISTICS, Statistic, columns_needed

log = logging.getLogger("vario")

MOST_SERIES = 2000
"""The most series of one sink; other tools become slow with more."""
DEFAULT_SERIES = ("*",)
"""All plain numbers."""

Values = dict[str, float]
"""By name: `loss`, or `gradient/head.weight/norm`."""


@dataclass(frozen=True)
class _Wish:
    """One pattern `QUANTITY|TARGET|STATISTIC`."""

    quantity: re.Pattern[str]
    target: re.Pattern[str]
    statistics: tuple[Statistic, ...]


class ChosenSeries:
    """Picks the numbers of chosen series out of each record."""

    def __init__(self, name: str, patterns: Sequence[str]) -> None:
        """A pattern is that of a plain number, or `QUANTITY|TARGET|STATISTIC`; raises ConfigError for anything else."""
        self._name = name
        key = f"live.{name}.series"
        self._numbers = []
        self._wishes = []
        for pattern in patterns:
            if not isinstance(pattern, str) or (pattern.count("|") not in (0, 2) and not pattern.startswith("re:")):
                raise ConfigError(f"{key}: expected plain numbers or QUANTITY|TARGET|STATISTIC, got {pattern!r}")
            if "|" not in pattern or pattern.startswith("re:"):
                self._numbers.append(pattern_matcher(pattern, key))
                continue
            quantity, target, statistic = pattern.split("|")
            if quantity == SCALAR:
                self._numbers.append(pattern_matcher(target, key))
                continue
            expression = pattern_matcher(statistic or "*", key)
            chosen = tuple(found.part for found in STATISTICS if expression.fullmatch(found.name))
            if not chosen:
                raise ConfigError(STATISTICS.refusal(statistic, key))
            self._wishes.append(_Wish(pattern_matcher(quantity, key), pattern_matcher(target, key), chosen))
        self._passed: set[str] = set()
        self._is_number: dict[str, bool] = {}
        self._rows: dict[str, tuple[Sequence[str], list[tuple[list[int], list[str], Statistic]]]] = {}
        self._is_full = False
        self.parts: dict[str, tuple[str, str, str]] = {}
        """Quantity, target and statistic of each name that is one of a tensor's."""

    def keep_recorded(self, statistics: Sequence[str] | None) -> None:
        """Drop statistics whose columns are not computed; raises ConfigError for one that was named."""
        if statistics is None:
            return
        columns = columns_needed(statistics)
        for at, wish in enumerate(self._wishes):
            known = tuple(one for one in wish.statistics if columns.issuperset(one.needs))
            if not known:
                name = wish.statistics[0].name
                raise ConfigError(f"live.{self._name}.series: '{name}' is not recorded. Add it to `statistics`.")
            self._wishes[at] = replace(wish, statistics=known)

    def values(self, record: StepRecord) -> Values:
        """Return the chosen numbers of a record."""
        found = {name: value for name, value in record.scalars.values.items() if self._is_chosen(name)}
        if self._wishes:
            by_quantity: dict[str, list[Frame]] = {}
            for frame in record.frames:
                if any(wish.quantity.fullmatch(frame.quantity) for wish in self._wishes):
                    by_quantity.setdefault(frame.quantity, []).append(frame)
            for quantity, frames in by_quantity.items():
                found.update(self._statistics(quantity, frames))
        return {name: value for name, value in found.items() if self._has_room(name)}

    def _is_chosen(self, name: str) -> bool:
        known = self._is_number.get(name)
        if known is None:
            known = self._is_number[name] = any(pattern.fullmatch(name) for pattern in self._numbers)
        return known

    def _statistics(self, quantity: str, frames: Sequence[Frame]) -> Iterator[tuple[str, float]]:
        """Micro-steps are merged, as a reader does."""
        targets, summaries = frames[0].targets, frames[0].summaries
        if len(frames) > 1:
            names = [name for frame in frames for name in frame.targets]
            targets = list(dict.fromkeys(names))
            place = {name: at for at, name in enumerate(targets)}
            groups = np.array([place[name] for name in names], np.int64)
            summaries = merge(np.concatenate([frame.summaries for frame in frames]), groups, len(targets))
        for rows, titles, statistic in self._chosen_rows(quantity, targets):
            yield from zip(titles, statistic(summaries[rows]).tolist(), strict=True)

    def _chosen_rows(self, quantity: str, targets: Sequence[str]) -> list[tuple[list[int], list[str], Statistic]]:
        """Which rows count for which statistic; the same at most steps."""
        known = self._rows.get(quantity)
        if known is not None and (known[0] is targets or list(known[0]) == list(targets)):
            return known[1]
        found = []
        for wish in self._wishes:
            if wish.quantity.fullmatch(quantity):
                rows = [at for at, target in enumerate(targets) if wish.target.fullmatch(target)][:MOST_SERIES]
                for statistic in wish.statistics if rows else ():
                    parts = [(quantity, targets[at], statistic.name) for at in rows]
                    names = ["/".join(each) for each in parts]
                    self.parts.update(zip(names, parts, strict=True))
                    found.append((rows, names, statistic))
        self._rows[quantity] = targets, found
        return found

    def _has_room(self, name: str) -> bool:
        if name in self._passed:
            return True
        if len(self._passed) >= MOST_SERIES:
            if not self._is_full:
                self._is_full = True
                log.warning("live.%s: only the first %d series are forwarded; choose fewer", self._name, MOST_SERIES)
            return False
        self._passed.add(name)
        return True
