"""How the ranks of a job agree on intervals: one decides, and writes from which step on they apply."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path

from vario.core.errors import RunCorrupt
from vario.core.run_files.shapes import read_json
from vario.core.run_format import INTERVALS
from vario.store.folder import write_json

LOOK_SECONDS = 1.0
"""How often the other ranks check."""
_AHEAD_SECONDS = 3.0
_AHEAD_STEPS = 16
"""Intervals apply from a step at least this far ahead, so that every rank knows them by then."""
_SHAPE = {"from_step": int, "every": dict}


class RankIntervals:
    """The intervals of one job, as one of its ranks knows them."""

    def __init__(self, run: Path, rank: int, leader: int) -> None:
        self._leads = rank == leader
        self._folder = run / f"rank{leader}"
        self._due: tuple[int, dict[str, int]] | None = None
        self._looked = time.monotonic()
        self._known = -1

    @property
    def decides(self) -> bool:
        """Whether this rank decides: the leader, and every rank that cannot see the leader's folder."""
        return self._leads or not self._folder.is_dir()

    def propose(self, step: int, seconds: float, every: Mapping[str, int]) -> None:
        """Propose intervals to apply soon, given the seconds per step."""
        if self._due is not None:
            return  # the previous proposal has to apply first, or none ever would
        ahead = max(_AHEAD_STEPS, math.ceil(_AHEAD_SECONDS / max(seconds, 1e-6)))
        first = -(-(step + ahead) // _AHEAD_STEPS) * _AHEAD_STEPS
        self._due = first, dict(every)
        if self._leads:
            write_json(self._folder / INTERVALS, {"from_step": first, "every": dict(every)})

    def look(self) -> None:
        """Read what the leader has written, if it is time to. Called on the writer thread."""
        now = time.monotonic()
        if self._leads or now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        try:
            found = read_json(self._folder / INTERVALS, 2, _SHAPE)
        except (OSError, RunCorrupt):
            return  # being written, or the disk is unavailable: try again next time
        if found is not None and found["from_step"] != self._known:
            self._known = found["from_step"]
            self._due = self._known, {str(name): int(every) for name, every in found["every"].items()}

    def due(self, step: int) -> Mapping[str, int] | None:
        """Return, once, the intervals that apply from this step or an earlier one."""
        if self._due is None or step < self._due[0]:
            return None
        (_, every), self._due = self._due, None
        return every
