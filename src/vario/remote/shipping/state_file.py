"""What a shipper says of itself beside the run: `.shipping/<run>.json`, for whoever looks at the run."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vario.core.errors import RunCorrupt
from vario.core.run_files import no_links
from vario.core.run_files.shapes import Maybe, Whole, read_json

log = logging.getLogger("vario")

FOLDER = ".shipping"
SHIPPING, UNREACHABLE, DONE, GAVE_UP, REFUSED = "shipping", "unreachable", "done", "gave up", "refused"
SHAPE: dict[str, Any] = {
    "target": str,
    "state": str,
    "error": Maybe(str),
    "since": Maybe(float),
    "num_waiting": Maybe(Whole(0)),
    "time": Maybe(float),
}


def state_path(run: Path) -> Path:
    """Return where a run's shipper says how it is."""
    return run.parent / FOLDER / f"{run.name}.json"


@dataclass(frozen=True)
class ShippingState:
    """What the shipper of a run said last."""

    target: str
    state: str
    """shipping, unreachable, done, gave up, or refused."""
    error: str | None
    since: float | None
    """Unix seconds at which it came into this state."""
    num_waiting: int
    """Files that are not there yet."""

    @property
    def is_stuck(self) -> bool:
        """Whether nothing arrives: the target cannot be reached, or is another run's."""
        return self.state in (UNREACHABLE, GAVE_UP, REFUSED)


def read_state(run: Path) -> ShippingState | None:
    """Return what the shipper of a run said last; None if it has none, or if that cannot be read."""
    try:
        found = read_json(state_path(run), 2, SHAPE)
    except RunCorrupt as damage:
        log.warning("%s", damage)  # it lies beside the run, which can be read without it
        return None
    if found is None or "target" not in found or "state" not in found:
        return None
    error, since, waiting = found.get("error"), found.get("since"), found.get("num_waiting") or 0
    return ShippingState(found["target"], found["state"], error, None if since is None else float(since), waiting)


class StateFile:
    """Writes it, when something changed or a while has passed."""

    def __init__(self, run: Path, target: str, seconds: float = 5.0) -> None:
        self._path = state_path(run)
        self._target = target
        self._seconds = seconds
        self._state, self._since, self._written = "", time.time(), float("-inf")

    def write(self, state: str, error: str | None = None, num_waiting: int = 0) -> None:
        """Say how it is. What cannot be written is left out: shipping is more important."""
        now = time.time()
        if state != self._state:
            self._since = now
        elif now - self._written < self._seconds:
            return
        self._state, self._written = state, now
        content = {
            "target": self._target,
            "state": state,
            "error": error,
            "since": self._since,
            "num_waiting": num_waiting,
            "time": now,
        }
        unfinished = self._path.with_name(f"{self._path.name}.tmp")
        try:
            with open(unfinished, "w", encoding="utf8", opener=no_links) as file:
                json.dump(content, file)
            os.replace(unfinished, self._path)
        except OSError:
            return
