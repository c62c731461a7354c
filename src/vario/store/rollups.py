"""Build rollups of closed parts, so that a long run can be plotted without reading all its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vario.core.run_format import PART, ROLLUPS
from vario.store.encoding import whole_array
from vario.store.recovery import ROLLUP
from vario.store.rollup_files import (
    BUCKETS_PER_FILE,
    Rollup,
    coarser,
    coarser_rows,
    every_step,
    joined,
    merged_rows,
    progressions,
    read_rollup,
    write_rollup,
)
from vario.store.rollup_rows import RollupRows, Steps, folded, measured, together

BUCKET_STEPS = 128
"""Recorded steps per bucket of the finest level, once a run is long."""

SHORTEST_STEPS = 32
BUCKETS_AT_LEAST = 64
"""A short run has shorter buckets, so that it has about this many."""

FINE_BUCKETS = 256
"""Of a level, this many of the newest buckets are kept where rows are thinned; coarser ones stand for the older."""

ROLLUP_MIN_ROWS = 1 << 20
"""With fewer rows than this, reading is as fast without rollups."""


@dataclass(frozen=True)
class _Pending:
    """Parts that are too short for their own bucket."""

    rollup: Rollup
    rows: RollupRows
    num_steps: int


class RollupBuilder:
    """Builds the rollups of one quantity of one rank, in their own folder."""

    def __init__(self, rank_folder: Path, quantity: str, bucket_steps: int = BUCKET_STEPS) -> None:
        self._folder = rank_folder / ROLLUPS / quantity
        self._bucket_steps = bucket_steps
        self._pending: _Pending | None = None
        self._known: list[Rollup] = self._read_folder()
        self._num_steps = sum(num for rollup in self._known if rollup.level == 1 for _, _, num in rollup.steps)

    def covers(self, part: int) -> bool:
        """Whether a part already has its rollup."""
        return any(known.range[0] <= part <= known.range[1] for known in self._known)

    def stands_for(self, part: int, cuts: Mapping[int, int]) -> bool:
        """Whether readers find a rollup in the place of a part, given the first step of each later session."""
        return any(known.range[0] <= part <= known.range[1] and _is_usable(known, cuts) for known in self._known)

    def last_covered(self) -> dict[int, int]:
        """Return the last step of each part that has its rollup."""
        return {number: last for known in self._known for number, _, last, _ in known.parts}

    def newest_steps(self, number: int) -> int | None:
        """Return the first of this many newest steps that rollups stand for; None if there are fewer."""
        ends = [known for known in self._known if known.level == 1]
        steps: list[Steps] = []
        for known in sorted(ends, key=lambda one: one.range, reverse=True):
            steps.append(every_step(known.steps))
            if sum(map(len, steps)) > number:
                return int(np.unique(np.concatenate(steps))[-number])
        return None

    def drop_fine(
        self, thinned: Sequence[tuple[int, int]], cuts: Mapping[int, int], num_buckets: int = FINE_BUCKETS
    ) -> bool:
        """Remove fine rollups of old thinned parts that coarser ones stand for; return whether there were any.

        Of each level about this many of the newest buckets are kept, so buckets are longer the older they are.
        """
        dropped = False
        for level in range(1, max((known.level for known in self._known), default=0)):
            here = sorted((known for known in self._known if known.level == level), key=lambda known: known.range)
            newer = sum(len(known.buckets) for known in here)
            for coarse in sorted((k for k in self._known if k.level == level + 1), key=lambda known: known.range):
                inside = [known for known in here if coarse.holds(known)]
                newer -= sum(len(known.buckets) for known in inside)
                is_old = newer >= num_buckets and len(coarse.buckets) >= BUCKETS_PER_FILE and _is_usable(coarse, cuts)
                if inside and is_old and any(a <= coarse.range[0] and coarse.range[1] <= b for a, b in thinned):
                    for known in inside:
                        (self._folder / known.name).unlink(missing_ok=True)
                        self._known.remove(known)
                    dropped = True
        return dropped

    def add(self, part: int, session: int, table: Any, last_part: int | None = None) -> None:
        """Add a closed part with rows in the order of (target, step); parts come in the order of their numbers.

        `last_part`: the last of those whose place it took.
        """
        if not table.num_rows or self.covers(part):
            return
        steps = _distinct(whole_array(table.column("step").chunk(0), np.int64))
        pending = self._pending
        if pending and (pending.rollup.session != session or pending.rollup.range[1] + 1 != part):
            self._flush()
        bucket_steps = self._bucket_length()
        num_buckets = max(1, len(steps) // bucket_steps)
        firsts = np.linspace(0, len(steps), num_buckets, endpoint=False).astype(np.int64)
        lasts = np.append(firsts[1:], len(steps)) - 1
        spans = list(zip(steps[firsts].tolist(), steps[lasts].tolist(), strict=True))
        entry = (part, int(steps[0]), int(steps[-1]), int(table.num_rows))
        entries = [entry] if last_part in (None, part) else [entry, (last_part, int(steps[0]), int(steps[-1]), 0)]
        rollup = Rollup(1, session, tuple(entries), tuple(spans), progressions(steps))
        rows, num_steps = measured(table, steps[firsts]), len(steps)
        if (pending := self._pending) is not None:
            (before,) = pending.rollup.buckets
            first = min(before[0], spans[0][0])
            rollup = joined([pending.rollup, rollup], 1, [(first, max(before[1], spans[-1][1]))])
            rows = folded(together([pending.rows, rows]), np.array([first]))
            num_steps += pending.num_steps
        self._pending = _Pending(rollup, rows, num_steps)
        if num_steps >= bucket_steps:
            self._flush()
            self._gather(session)

    def _bucket_length(self) -> int:
        return min(self._bucket_steps, max(SHORTEST_STEPS, self._num_steps // BUCKETS_AT_LEAST))

    def finish(self) -> None:
        """Add what is left, if the run was long enough to have rollups at all."""
        self._flush()
        self._gather(None)

    def _flush(self) -> None:
        pending, self._pending = self._pending, None
        # Short parts are read as fast without.
        if pending is not None and (self._known or pending.num_steps >= self._bucket_length()):
            self._write(pending.rollup, iter([pending.rows]))
            self._num_steps += pending.num_steps

    def _gather(self, open_session: int | None) -> None:
        """Merge files into larger and coarser ones where there are enough; in ended sessions, all that are left."""
        level = 1
        while any(known.level == level for known in self._known):
            for batch in self._loose(level):
                is_over = batch[0].session != open_session
                buckets = [span for rollup in batch for span in rollup.buckets]
                has_coarser = any(k.level == level + 1 and k.session == batch[0].session for k in self._known)
                is_enough = len(buckets) >= BUCKETS_PER_FILE
                if len(batch) > 1 and (is_enough or is_over):
                    batch = [self._join(batch, level, buckets)]
                if is_enough or (is_over and has_coarser):
                    self._coarsen(batch, level, buckets)
            level += 1

    def _loose(self, level: int) -> list[list[Rollup]]:
        """Return the files of a level that no coarser one covers, in batches that may become one."""
        here = [known for known in self._known if known.level == level]
        above = [known for known in self._known if known.level == level + 1]
        batches: list[list[Rollup]] = []
        num_buckets = 0
        for rollup in sorted(here, key=lambda known: known.range):
            if any(coarse.holds(rollup) for coarse in above):
                continue
            last = batches[-1][-1] if batches else None
            follows = last is not None and last.session == rollup.session and last.range[1] + 1 == rollup.range[0]
            if follows and num_buckets < BUCKETS_PER_FILE:
                batches[-1].append(rollup)
                num_buckets += len(rollup.buckets)
            else:
                batches.append([rollup])
                num_buckets = len(rollup.buckets)
        return batches

    def _join(self, batch: Sequence[Rollup], level: int, buckets: Sequence[tuple[int, int]]) -> Rollup:
        whole = joined(batch, level, buckets)
        # It replaces the small ones from the moment it has its name, so they may go in any order.
        self._write(whole, merged_rows([self._folder / rollup.name for rollup in batch]))
        for rollup in batch:
            (self._folder / rollup.name).unlink()
            self._known.remove(rollup)
        return whole

    def _coarsen(self, batch: Sequence[Rollup], level: int, buckets: Sequence[tuple[int, int]]) -> None:
        spans = coarser(buckets)
        bounds = np.array([first for first, _ in spans], np.int64)
        (whole,) = batch
        self._write(joined(batch, level + 1, spans), coarser_rows(self._folder / whole.name, bounds))

    def _write(self, rollup: Rollup, slices: Any) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_rollup(self._folder, rollup, slices)
        self._known.append(rollup)

    def _read_folder(self) -> list[Rollup]:
        """Return the existing rollups; remove what a killed writer left unfinished."""
        if not self._folder.is_dir():
            return []
        for unfinished in self._folder.glob("*.tmp"):
            unfinished.unlink()
        found = [read_rollup(path) for path in self._folder.iterdir() if ROLLUP.fullmatch(path.name)]
        kept = [
            one
            for one in found
            if not any(other.level == one.level and other is not one and other.holds(one) for other in found)
        ]
        for rollup in found:
            if rollup not in kept:
                (self._folder / rollup.name).unlink()
        return kept


def _is_usable(rollup: Rollup, cuts: Mapping[int, int]) -> bool:
    """Whether no later session discarded some of its rows and kept others."""
    cut = min((step for session, step in cuts.items() if session > rollup.session), default=None)
    return cut is None or max(last for _, last in rollup.buckets) < cut or rollup.buckets[0][0] >= cut


def part_number(path: Path) -> int:
    """Return the number in a part's name; the first of several."""
    match = PART.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _distinct(steps: Steps) -> Steps:
    """Return the distinct steps of many rows, in order."""
    lowest, highest = int(steps.min()), int(steps.max())
    if highest - lowest < 4 * len(steps):
        return np.flatnonzero(np.bincount(steps - lowest)) + lowest
    return np.unique(steps)
