"""Which steps are watched."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Every `every`-th step from `start`, at most `count` of them."""

    every: int = 1
    start: int = 0
    count: int | None = None

    def watches(self, step: int) -> bool:
        """Whether that step is watched."""
        if step < self.start:
            return False
        nth, rest = divmod(step - self.start, self.every)
        return rest == 0 and (self.count is None or nth < self.count)
