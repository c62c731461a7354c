"""How fast to send, and how long to wait after a failure."""

from __future__ import annotations

import random
import time

FIRST_PAUSE_SECONDS = 1.0
MOST_PAUSE_SECONDS = 120.0


class Pace:
    """Waits so that no more than a number of bytes is sent per second; None: as fast as possible."""

    def __init__(self, bytes_per_second: int | None = None) -> None:
        self._rate = bytes_per_second
        self._free_at = time.monotonic()

    def wait(self, num_bytes: int) -> None:
        """Wait until so many bytes may be sent."""
        if not self._rate:
            return
        now = time.monotonic()
        if self._free_at > now:
            time.sleep(self._free_at - now)
        self._free_at = max(now, self._free_at) + num_bytes / self._rate


def pause_seconds(num_failures: int) -> float:
    """How long to wait after so many failures in a row: twice as long each time, and not all at the same moment."""
    longest = min(MOST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(num_failures - 1, 30))
    return longest * random.uniform(0.5, 1.0)
