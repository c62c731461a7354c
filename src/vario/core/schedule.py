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
        return self.next_from(step) == step

    def next_from(self, step: int) -> int | None:
        """The first step from that one on that is watched; None: there is none any more."""
        nth = max(0, -(-(step - self.start) // self.every))
        return self.start + nth * self.every if self.count is None or nth < self.count else None
