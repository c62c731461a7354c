"""The position of a live stream: what a page has already received."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from vario.core.process import ending
from vario.runs.run import Run
from vario.runs.views.status.quantity_size import newest_of_rank, newest_step
from vario.web.api.parameters import BadParameter

OVER = (*ending.OVER, "died", "left")


@dataclass(frozen=True)
class Cursor:
    """A page has received all columns and points up to a step of a session, and this many incidents."""

    session: int
    step: int
    num_incidents: int
    run: int | None = None
    """Identifies the run, since another one may have the same name; None if unknown."""

    def __str__(self) -> str:
        seen = f"{self.session}.{self.step}.{self.num_incidents}"
        return seen if self.run is None else f"{seen}.{self.run}"

    def is_same_story(self, other: Cursor) -> bool:
        """Whether one continues the other: the same run, without a resume in between."""
        is_same_run = self.run is None or other.run is None or self.run == other.run
        return is_same_run and self.session == other.session


def cursor_of(run: Run, num_incidents: int) -> Cursor:
    """Return the cursor at the current end of a run."""
    session = max(0, len(run.sessions) - 1)
    return Cursor(session, complete_step(run), num_incidents, zlib.crc32(run.id.encode()))


def read_cursor(text: str) -> Cursor:
    """Parse a cursor as `Cursor` writes it; trailing parts may be missing."""
    words = text.split(".")
    if not 2 <= len(words) <= 4 or not all(_is_number(word) for word in words):
        raise BadParameter("cursor", f"expected the cursor of a response, such as 0.120.1, got '{text[:40]}'")
    session, step, *rest = map(int, words)
    return Cursor(session, step, *rest) if rest else Cursor(session, step, 0)


def _is_number(word: str) -> bool:
    digits = word.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) < 16


def complete_step(run: Run) -> int:
    """Return the newest step with all rows on all active ranks; -1 if there is none.

    All rows of a step are written before the plain numbers of the next one.
    """
    if not run.ranks:
        return -1
    states = {found.rank: found.state for found in run.noted_rank_states}
    if run.state not in ("running", "stalled"):
        quantities = run.quantities("all")
        # An imported run may have no plain numbers.
        newest = [newest_step(run, name) for name in (["scalar"] if "scalar" in quantities else quantities)]
        return max((step for step in newest if step is not None), default=-1)
    going = [rank for rank in run.ranks if states.get(rank) not in OVER]
    found = [newest_of_rank(run, "scalar", rank) for rank in going or run.ranks]
    return min((-1 if step is None else step - 1 for step in found), default=-1)
