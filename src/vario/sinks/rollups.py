"""Makes outlines of closed parts, so that a long run is seen at a glance without reading all its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vario.core.run_format import PART, ROLLUPS
from vario.sinks.encoding import whole_array
from vario.sinks.recovery import OUTLINE
from vario.sinks.rollup_files import (
    STRETCHES_PER_FILE,
    Outline,
    coarser,
    coarser_rows,
    joined,
    merged_rows,
    progressions,
    read_outline,
    write_outline,
)
from vario.sinks.rollup_rows import OutlineRows, Steps, folded, measured, together

STRETCH_STEPS = 128
"""A stretch of the finest level is of so many recorded steps, once a run is long."""

SHORTEST_STEPS = 32
STRETCHES_AT_LEAST = 64
"""A short run has shorter stretches, so that it has about so many of them."""

OUTLINED_ROWS = 1 << 20
"""Fewer rows than these are read as fast without outlines."""


@dataclass(frozen=True)
class _Pending:
    """Parts that are too short for a stretch of their own."""

    outline: Outline
    rows: OutlineRows
    num_steps: int


class Outliner:
    """Keeps the outlines of one quantity of one rank, in a folder of their own."""

    def __init__(self, rank_folder: Path, quantity: str, stretch_steps: int = STRETCH_STEPS) -> None:
        self._folder = rank_folder / ROLLUPS / quantity
        self._stretch_steps = stretch_steps
        self._pending: _Pending | None = None
        self._known: list[Outline] = self._read_folder()
        self._num_steps = sum(num for outline in self._known if outline.level == 1 for _, _, num in outline.steps)

    def covers(self, part: int) -> bool:
        """Whether a part needs no outline any more."""
        return any(known.range[0] <= part <= known.range[1] for known in self._known)

    def add(self, part: int, session: int, table: Any) -> None:
        """Take in a closed part, its rows in the order of (target, step); parts come in the order of their number."""
        if not table.num_rows or self.covers(part):
            return
        steps = _distinct(whole_array(table.column("step").chunk(0), np.int64))
        pending = self._pending
        if pending and (pending.outline.session != session or pending.outline.range[1] + 1 != part):
            self._flush()
        stretch_steps = self._stretch()
        num_stretches = max(1, len(steps) // stretch_steps)
        firsts = np.linspace(0, len(steps), num_stretches, endpoint=False).astype(np.int64)
        lasts = np.append(firsts[1:], len(steps)) - 1
        spans = list(zip(steps[firsts].tolist(), steps[lasts].tolist(), strict=True))
        entry = (part, int(steps[0]), int(steps[-1]), int(table.num_rows))
        outline = Outline(1, session, (entry,), tuple(spans), progressions(steps))
        rows, num_steps = measured(table, steps[firsts]), len(steps)
        if (pending := self._pending) is not None:
            (before,) = pending.outline.stretches
            first = min(before[0], spans[0][0])
            outline = joined([pending.outline, outline], 1, [(first, max(before[1], spans[-1][1]))])
            rows = folded(together([pending.rows, rows]), np.array([first]))
            num_steps += pending.num_steps
        self._pending = _Pending(outline, rows, num_steps)
        if num_steps >= stretch_steps:
            self._flush()
            self._gather(session)

    def _stretch(self) -> int:
        return min(self._stretch_steps, max(SHORTEST_STEPS, self._num_steps // STRETCHES_AT_LEAST))

    def finish(self) -> None:
        """Take in what is left, where the run was long enough to have outlines at all."""
        self._flush()
        self._gather(None)

    def _flush(self) -> None:
        pending, self._pending = self._pending, None
        # What is short is read as fast without.
        if pending is not None and (self._known or pending.num_steps >= self._stretch()):
            self._write(pending.outline, iter([pending.rows]))
            self._num_steps += pending.num_steps

    def _gather(self, open_session: int | None) -> None:
        """Make larger and coarser files wherever there is enough for one; all there is of sessions that are over."""
        level = 1
        while any(known.level == level for known in self._known):
            for batch in self._loose(level):
                is_over = batch[0].session != open_session
                stretches = [span for outline in batch for span in outline.stretches]
                has_coarser = any(k.level == level + 1 and k.session == batch[0].session for k in self._known)
                is_enough = len(stretches) >= STRETCHES_PER_FILE
                if len(batch) > 1 and (is_enough or is_over):
                    batch = [self._join(batch, level, stretches)]
                if is_enough or (is_over and has_coarser):
                    self._coarsen(batch, level, stretches)
            level += 1

    def _loose(self, level: int) -> list[list[Outline]]:
        """The files of a level that no coarser one stands for, in batches that may become one."""
        here = [known for known in self._known if known.level == level]
        above = [known for known in self._known if known.level == level + 1]
        batches: list[list[Outline]] = []
        num_stretches = 0
        for outline in sorted(here, key=lambda known: known.range):
            if any(coarse.holds(outline) for coarse in above):
                continue
            last = batches[-1][-1] if batches else None
            follows = last is not None and last.session == outline.session and last.range[1] + 1 == outline.range[0]
            if follows and num_stretches < STRETCHES_PER_FILE:
                batches[-1].append(outline)
                num_stretches += len(outline.stretches)
            else:
                batches.append([outline])
                num_stretches = len(outline.stretches)
        return batches

    def _join(self, batch: Sequence[Outline], level: int, stretches: Sequence[tuple[int, int]]) -> Outline:
        whole = joined(batch, level, stretches)
        # It stands for the small ones from the moment it has its name, so they may go in any order.
        self._write(whole, merged_rows([self._folder / outline.name for outline in batch]))
        for outline in batch:
            (self._folder / outline.name).unlink()
            self._known.remove(outline)
        return whole

    def _coarsen(self, batch: Sequence[Outline], level: int, stretches: Sequence[tuple[int, int]]) -> None:
        spans = coarser(stretches)
        bounds = np.array([first for first, _ in spans], np.int64)
        (whole,) = batch
        self._write(joined(batch, level + 1, spans), coarser_rows(self._folder / whole.name, bounds))

    def _write(self, outline: Outline, slices: Any) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_outline(self._folder, outline, slices)
        self._known.append(outline)

    def _read_folder(self) -> list[Outline]:
        """What is there; whatever a killed writer left half done is cleared away."""
        if not self._folder.is_dir():
            return []
        for unfinished in self._folder.glob("*.tmp"):
            unfinished.unlink()
        found = [read_outline(path) for path in self._folder.iterdir() if OUTLINE.fullmatch(path.name)]
        kept = [
            one
            for one in found
            if not any(other.level == one.level and other is not one and other.holds(one) for other in found)
        ]
        for outline in found:
            if outline not in kept:
                (self._folder / outline.name).unlink()
        return kept


def part_number(path: Path) -> int:
    """The number in a part's name."""
    match = PART.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _distinct(steps: Steps) -> Steps:
    """The distinct steps of many rows, in order."""
    lowest, highest = int(steps.min()), int(steps.max())
    if highest - lowest < 4 * len(steps):
        return np.flatnonzero(np.bincount(steps - lowest)) + lowest
    return np.unique(steps)
