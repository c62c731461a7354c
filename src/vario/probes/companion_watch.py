"""A model that runs beside the watched one, compared with its own past: teachers, targets, averages, references."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from vario.backends.protocols.companions import Companion

TRAINING, TRAINING_AT_START, STILL, APART, MOVED = "training", "training_at_start", "still", "apart", "moved"
KNOWN, LASTING = 8, 3
"""Looks after which its habits are known, and looks in a row that make a change."""
LEAST_STILL, TIMES_STILL, LEAST_MOVES = 40, 4.0, 4
"""Steps without a move, in units of the longest before too, that are no habit of one that has moved so often."""
FAR, TIMES_FAR = 0.5, 2.5
"""How far it must be from the watched model, relative to its size and to the farthest before."""

COPIED, LEAST_BETWEEN_COPIES = 0.5, 10
"""The share of its distance that is left after it has copied the watched model, and the steps it kept still before."""
NEW_FAR, NEW_TIMES = 0.1, 2.0
"""The same for another object that has taken its place, compared with the last look."""


class CompanionEvent(NamedTuple):
    """What has changed."""

    what: str
    value: float
    since: int


class CompanionWatch:
    """Knows one companion."""

    def __init__(self) -> None:
        self._looks = self._active = self._inactive = self._num_moves = self._num_far = 0
        self._weights: tuple[float, ...] = ()
        self._distance = math.nan
        self._farthest = 0.0
        self._moved_at = self._longest_still = -1
        self._moves_apart = False
        """Whether the watched model has moved away since this one last did."""
        self.has_copied = False
        """Whether the latest look has met it as a new copy of the watched model, after it had kept still."""
        self._told: set[str] = set()
        self._last_step = 0

    def look(self, step: int, now: Companion) -> Sequence[CompanionEvent]:
        """Compare the state at a step; return what has changed, each kind once."""
        self._looks += 1
        self.has_copied = False
        found = [*self._mode(step, now), *self._movement(step, now), *self._distances(step, now)]
        self._weights, self._distance, self._last_step = now.weights, now.distance, step
        news = [event for event in found if event.what not in self._told]
        self._told.update(event.what for event in news)
        return news

    def _mode(self, step: int, now: Companion) -> list[CompanionEvent]:
        self._active = self._active + 1 if now.num_active else 0
        self._inactive += not now.num_active
        if self._active == 1:
            self._active_since = step
        has_kept_still = self._num_moves == 0 and self._looks >= KNOWN
        if self._active == LASTING and self._inactive >= KNOWN:
            return [CompanionEvent(TRAINING, float(now.num_active), self._active_since)]
        if self._active >= KNOWN and not self._inactive and has_kept_still and now.was_called:
            return [CompanionEvent(TRAINING_AT_START, float(now.num_active), 0)]
        return []

    def _movement(self, step: int, now: Companion) -> list[CompanionEvent]:
        if self._looks == 1:
            self._moved_at = step
            return []
        if len(now.weights) == len(self._weights) and now.weights == self._weights:
            self._moves_apart |= now.distance != self._distance and not math.isnan(now.distance)
            still = step - self._moved_at
            is_late = self._num_moves >= LEAST_MOVES and still > max(LEAST_STILL, TIMES_STILL * self._longest_still)
            return [CompanionEvent(STILL, float(still), self._moved_at)] if is_late and self._moves_apart else []
        self._num_moves += 1
        was_still = step - self._moved_at
        self._longest_still = max(self._longest_still, was_still)
        self._moved_at, self._moves_apart = step, False
        came_closer = now.distance < self._distance
        self.has_copied = was_still >= LEAST_BETWEEN_COPIES and now.distance < COPIED * self._distance
        if self._num_moves == 1 and self._looks > KNOWN and not came_closer:
            return [CompanionEvent(MOVED, now.distance, step)]
        return []

    def _distances(self, step: int, now: Companion) -> list[CompanionEvent]:
        if math.isnan(now.distance):
            return []
        if now.is_new and self._looks > KNOWN and now.distance > max(NEW_FAR, NEW_TIMES * self._distance):
            return [CompanionEvent(APART, now.distance, step)]
        is_far = self._looks > KNOWN and now.distance > max(FAR, TIMES_FAR * self._farthest)
        if not is_far:
            self._num_far, self._farthest = 0, max(self._farthest, now.distance)
            return []
        self._num_far += 1
        if self._num_far == 1:
            self._far_since = step
        return [CompanionEvent(APART, now.distance, self._far_since)] if self._num_far == 2 else []
