"""Keep a run small as it grows: thin old rows that rollups stand for, and merge small parts into larger ones.

Every task writes a new file whole, gives it its name, and only then removes those whose place it took. A reader ignores
a part whose rows are in a larger one, so a process that dies at any moment loses no row and shows none twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from vario.core.merged_parts import Span, joined_spans
from vario.core.retention_options import Tiers
from vario.store.kept_windows import kept_windows
from vario.store.part_list import PartList
from vario.store.rollups import RollupBuilder
from vario.store.thinning import MOST_ROWS, Keeper, Part, merge, thin

MOST_AT_ONCE = 32
"""Parts thinned or merged in one task, so that each is short."""
FEWEST = 8
"""Fewer parts than this are not worth merging."""
FEWEST_FULL = 4
"""This many are, if the merged part gets as large as it may."""
GROWTH = 8
"""Parts are of one level if one is less than this many times as large as another. A merged part is of the next level,
so a row is rewritten once per level."""
SMALLEST_BYTES = 1 << 16
MOST_BYTES = 1 << 22
"""Larger parts are not merged."""
SLACK = 8
"""Thinning begins when a quantity is larger than allowed by one part in this many, and then goes on."""
STEPS_TO_FULL = 16
"""A merged part with all its rows takes at most one part in this many of what may be kept in full."""
GRACE_SECONDS = 60.0
"""A part that was replaced stays this long, for readers that know only its name."""


class Retention:
    """Thins and merges the parts of one quantity of one rank."""

    def __init__(
        self,
        folder: Path,
        tiers: Tiers | None,
        first_steps: Sequence[int],
        session: int,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        """`first_steps` of all sessions up to `session`, which is the one that writes."""
        self._folder = folder
        self._tiers = tiers
        self._first_steps = first_steps
        self._cuts: Mapping[int, int] = {number: step for number, step in enumerate(first_steps) if number <= session}
        self._grace_seconds = grace_seconds
        self._is_draining = False
        self._replaced: list[tuple[float, list[str]]] = []
        self._parts = PartList(folder)

    def step(self, rollups: RollupBuilder | None, may_rewrite: Callable[[], bool] = lambda: True) -> bool:
        """Do one short task, if there is any and parts may be rewritten; return whether something was done."""
        self._remove(time.monotonic() - self._grace_seconds)
        if rollups is not None and (chosen := self._to_thin(rollups)) is not None:
            if not may_rewrite():
                return False
            self._thin(chosen)
            rollups.drop_fine(self._thinned_parts(), self._cuts)
            return True
        if (small := self._to_merge(rollups)) is not None and may_rewrite():
            merge(self._parts, small, self._cuts)
            self._replaced.append((time.monotonic(), [name for _, _, name in small]))
            return True
        return False

    def _thin(self, chosen: Sequence[Part]) -> None:
        assert self._tiers is not None
        windows = kept_windows(self._folder.parent, self._first_steps, self._tiers.around)
        keeper = Keeper(windows, self._tiers.every, self._last_whole(chosen[0][0]))
        for _ in thin(self._parts, chosen, self._cuts, keeper):
            pass
        self._replaced.append((time.monotonic(), [name for _, _, name in chosen]))

    def finish(self) -> None:
        """Remove all parts that were replaced."""
        self._remove(time.monotonic())

    def _remove(self, before: float) -> None:
        while self._replaced and self._replaced[0][0] <= before:
            for name in self._parts.superseded(self._replaced[0][1]):
                (self._folder / name).unlink(missing_ok=True)
            self._replaced.pop(0)

    def _to_thin(self, rollups: RollupBuilder | None) -> list[Part] | None:
        """Return the oldest parts whose rows are to go, if there is more than there should be."""
        if self._tiers is None or rollups is None:
            return None
        full = [part for part in self._parts.current() if not self._is_thinned(part)]
        excess = sum(self._parts.size(name) for _, _, name in full) - self._tiers.bytes
        self._is_draining = excess > 0 and (self._is_draining or excess > self._tiers.bytes // SLACK)
        keep_from = rollups.newest_steps(self._tiers.steps) if self._is_draining else None
        if keep_from is None:
            return None
        lasts = rollups.last_covered()
        chosen: list[Part] = []
        for part in self._parts.current():
            merged = self._parts.merged(part[2])
            last = merged.steps[1] if merged is not None else lasts.get(part[0])
            is_old = last is not None and last < keep_from and self._is_rolled_up(part, rollups)
            if is_old and not self._is_thinned(part) and excess > 0 and len(chosen) < MOST_AT_ONCE:
                chosen.append(part)
                excess -= self._parts.size(part[2])
            elif len(chosen) > 1:
                break
            else:
                # One part alone would get the name it has; see `thin`.
                chosen = []
        return chosen if len(chosen) > 1 else None

    def _to_merge(self, rollups: RollupBuilder | None) -> list[Part] | None:
        """Return consecutive parts of like size that fit into one."""
        current = self._parts.current()
        # A part without a rollup would be rolled up by its own number.
        levels = [
            None if rollups is not None and not _is_covered(part, rollups) else _level(self._parts.size(part[2]))
            for part in current
        ]
        kinds = [self._is_thinned(part) for part in current]
        for level in sorted({one for one in levels if one is not None}):
            run: list[Part] = []
            num_rows = num_bytes = num_alike = 0
            for part, own, kind in [*zip(current, levels, kinds, strict=True), (None, None, None)]:
                follows = own is not None and own <= level and (not run or kind == self._is_thinned(run[-1]))
                rows, size = self._numbers(part) if part is not None and follows else (0, 0)
                is_full = num_rows + rows > MOST_ROWS or len(run) == MOST_AT_ONCE
                is_full = is_full or (not kind and num_bytes + size > self._most_bytes)
                if run and (not follows or is_full):
                    if num_alike >= (FEWEST_FULL if is_full else FEWEST):
                        return run
                    run, num_rows, num_bytes, num_alike = [], 0, 0, 0
                if part is not None and own is not None and own <= level:
                    rows, size = self._numbers(part)
                    run.append(part)
                    num_rows, num_bytes, num_alike = num_rows + rows, num_bytes + size, num_alike + (own == level)
        return None

    def _numbers(self, part: Part) -> tuple[int, int]:
        return self._parts.num_rows(part[2]), self._parts.size(part[2])

    @property
    def _most_bytes(self) -> int:
        """The size of a merged part with all its rows: thinning takes whole parts."""
        return MOST_BYTES * GROWTH if self._tiers is None else self._tiers.bytes // STEPS_TO_FULL

    def _is_rolled_up(self, part: Part, rollups: RollupBuilder) -> bool:
        return all(rollups.stands_for(number, self._cuts) for number in part[:2])

    def _is_thinned(self, part: Part) -> bool:
        merged = self._parts.merged(part[2])
        return merged is not None and bool(merged.thinned)

    def _last_whole(self, number: int) -> int | None:
        """Return the last step that is whole in the thinned parts before one."""
        for _, last, name in reversed(self._parts.current()):
            part = self._parts.merged(name)
            if last < number and part is not None and part.whole:
                first, distance, count = part.whole[-1]
                return first + distance * (count - 1)
        return None

    def _thinned_parts(self) -> list[Span]:
        """Return the numbers of parts whose rows were thinned, as ranges."""
        return list(joined_spans([part[:2] for part in self._parts.current() if self._is_thinned(part)]))


def _is_covered(part: Part, rollups: RollupBuilder) -> bool:
    return rollups.covers(part[0]) and rollups.covers(part[1])


def _level(num_bytes: int) -> int | None:
    """Return the level of a part by its size; None for one that is large enough."""
    if num_bytes > MOST_BYTES:
        return None
    level, bound = 0, SMALLEST_BYTES
    while num_bytes > bound:
        level, bound = level + 1, bound * GROWTH
    return level
