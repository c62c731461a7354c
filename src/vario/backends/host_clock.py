"""Time marks on the host, for backends whose tensors are there."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class HostMark:
    """A time mark on the host."""

    seconds: float

    def seconds_until(self, later: Any) -> float:
        """Return the seconds between two marks."""
        return float(later.seconds - self.seconds)


def host_mark() -> HostMark:
    """Return a mark of the current time."""
    return HostMark(time.perf_counter())
