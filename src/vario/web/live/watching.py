"""Polls an active run, shared by all pages that show it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vario.core.errors import VarioError
from vario.runs.run import Run
from vario.runs.views.curves import Curve, read_curve
from vario.runs.views.heat import Heat, read_heat
from vario.runs.views.status.vitals import RECENT_STEPS, read_vitals
from vario.web import bodies
from vario.web.addresses.charts import split_series
from vario.web.addresses.cursor import Cursor, cursor_of
from vario.web.addresses.incidents import described
from vario.web.reading import Readers, TooSlow
from vario.web.served import Served, Stamp

POLL_SECONDS = 1.0
LOOK_SHARE = 5
"""The pause after a slow poll, as a multiple of its duration."""
MOST_COLUMNS = 2000
MOST_CELLS = 400_000
"""A page that is further behind starts over: loading everything again is cheaper."""
READINGS_KEPT = 16
MOST_TARGETS = 200_000


@dataclass(frozen=True)
class Look:
    """The state of a run at one point in time."""

    cursor: Cursor
    state: str
    progress: bodies.Progress
    incidents: Sequence[bodies.Incident]

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.state not in ("running", "stalled")


class Watcher:
    """Polls something while anyone waits for updates."""

    def __init__(self, what: str, look: Callable[[], Any], readers: Readers) -> None:
        self._what = what
        self._look = look
        self._readers = readers
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._num_waiting = 0
        self.error: VarioError | None = None
        self.latest: Any = None

    @property
    def is_going(self) -> bool:
        """Whether anyone waits for updates."""
        return self._task is not None

    async def __aenter__(self) -> Watcher:
        self._num_waiting += 1
        if self._task is None:
            self.latest, self.error = None, None
            self._task = asyncio.create_task(self._go_on())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._num_waiting -= 1
        if not self._num_waiting and self._task is not None:
            self._task.cancel()
            self._task = None

    def wake(self) -> None:
        """Wake all waiting tasks; may be called from any thread."""
        if self._task is not None:
            self._task.get_loop().call_soon_threadsafe(self._tell)

    async def news(self, seconds: float) -> bool:
        """Wait for an update; False if none came in time."""
        waited_for = self._news
        try:
            await asyncio.wait_for(waited_for.wait(), seconds)
        except (asyncio.TimeoutError, TimeoutError):
            return False
        return True

    async def _go_on(self) -> None:
        while True:
            began = time.monotonic()
            try:
                found = await self._readers.read(self._what, self._look)
            except TooSlow:
                found = self.latest  # the next poll may be faster
            except VarioError as error:
                self.error = error
                self._tell()
                return
            if found != self.latest:
                self.latest = found
                self._tell()
            await asyncio.sleep(max(POLL_SECONDS, LOOK_SHARE * (time.monotonic() - began)))

    def _tell(self) -> None:
        # Waiting tasks have the old state; later ones wait for the next poll.
        told, self._news = self._news, asyncio.Event()
        told.set()


class RunLooks:
    """Polls one run, and reads what is new once for all pages."""

    def __init__(self, served: Served, name: str) -> None:
        self._served = served
        self._name = name
        self._stamp: object = None
        self._before: Look | None = None
        self._told: Stamp = ()
        self._incidents: list[bodies.Incident] = []
        self._readings: OrderedDict[object, Any] = OrderedDict()
        self._lock = threading.Lock()

    def look(self) -> Look:
        """Return the current state; does not read again what is unchanged."""
        with self._served.reading():
            return self._look(self._served.open(self._name))

    def _look(self, run: Run) -> Look:
        stamp = self._served.stamp(self._name)
        state = run.state
        if self._before is not None and stamp == self._stamp and state == self._before.state:
            return self._before
        # The ranks of a run are compared when it has ended.
        told = *(entry for entry in stamp if entry[0].endswith(".jsonl")), (state, 0, 0)
        if self._before is None or told != self._told:
            self._told, self._incidents = told, [described(incident) for incident in run.incidents]
        incidents = self._incidents
        cursor = cursor_of(run, len(incidents))
        vitals = read_vitals(run, first=max(0, cursor.step - RECENT_STEPS))
        pace = vitals.pace
        progress: bodies.Progress = {
            "step": pace.step,
            "state": state,
            "total_steps": pace.total_steps,
            "progress": pace.progress,
            "eta_seconds": pace.eta_seconds,
            "steps_per_second": pace.steps_per_second,
            "vital": [
                {"name": found.name, "target": found.target, "value": found.value, "unit": found.unit}
                for found in vitals.vitals
            ],
        }
        if self._before is not None and not self._before.cursor.is_same_story(cursor):
            # The same steps have different numbers now.
            with self._lock:
                self._readings.clear()
        self._stamp, self._before = stamp, Look(cursor, state, progress, incidents)
        return self._before

    def heat(self, quantity: str, statistic: str, rank: int | str, first: int, last: int) -> Heat:
        """Return the columns of a range of steps, one per step."""
        key = ("heat", quantity, statistic, rank, first, last)
        columns = last - first + 1
        found: Heat = self._once(
            key,
            lambda run: read_heat(
                run, quantity, statistic, rank, first, last, MOST_TARGETS, columns, finds_kinds=False
            ),
        )
        return found

    def curve(self, text: str, rank: int | str, first: int, last: int) -> Curve:
        """Return all points of a series in a range of steps."""
        quantity, target, statistic = split_series(text)
        found: Curve = self._once(
            ("curve", text, rank, first, last),
            lambda run: read_curve(run, target, quantity, statistic, rank, first, last, last - first + 1),
        )
        return found

    def _once(self, key: object, read: Callable[[Run], Any]) -> Any:
        with self._lock:
            if key not in self._readings:
                with self._served.reading():
                    self._readings[key] = read(self._served.open(self._name))
                while len(self._readings) > READINGS_KEPT:
                    self._readings.popitem(last=False)
            return self._readings[key]


def column_list(heat: Heat, places: Mapping[str, int], num_rows: int) -> tuple[list[Any], list[tuple[int, int]]]:
    """Return one list of values per column, in the page's row order, and the positions of NaN and Inf."""
    table = np.full((heat.values.shape[1], num_rows), np.nan, np.float64)
    rows = [places[name] for name in heat.targets]
    table[:, rows] = heat.values.T
    bad = [(rows[row], int(column)) for row, column in np.argwhere(heat.bad)]
    return list(table), bad
