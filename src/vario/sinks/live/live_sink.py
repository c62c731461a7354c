"""What all live sinks share: options, the rate, and a thread that sends."""

from __future__ import annotations

import importlib.util
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from vario.core.errors import ConfigError, MissingExtra
from vario.core.records import StepRecord
from vario.core.run_header import RunHeader
from vario.core.text import unknown
from vario.rules.api.alerts import Incident
from vario.sinks import PartsOff
from vario.sinks.live.chosen import DEFAULT_SERIES, ChosenSeries, Values

log = logging.getLogger("vario")

SECONDS = 0.1
"""The shortest time between two forwarded steps, unless `seconds` says otherwise."""
SEND_SECONDS = 1.0
"""How often waiting steps are sent, together."""
MOST_WAITING = 1000
"""The most steps that wait for a tool; then the oldest are dropped."""
CLOSE_SECONDS = 30.0
"""How long the end of a run waits for a tool."""
COMMON: dict[str, tuple[type, ...]] = {"series": (list, tuple), "every": (int,), "seconds": (int, float)}


@dataclass(frozen=True)
class Batch:
    """The numbers of one step."""

    step: int
    time: float
    values: Values


class LiveSink(ABC):
    """Passes chosen numbers of the leading rank on. Subclasses talk to one tool, on a thread of its own.

    A number that is logged rarely is not lost between two forwarded steps: it goes with the next of them,
    under its own step.
    """

    options: ClassVar[Mapping[str, tuple[type, ...]]] = {}
    """Its own options, and their types."""
    package: ClassVar[str | None] = None
    """The package it needs."""
    extra: ClassVar[str | None] = None
    """The extra that installs it, if it has another name than the sink."""
    name: ClassVar[str]

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        """Raises ConfigError for a wrong option and MissingExtra without its package."""
        self.chosen = dict(options or {})
        self._check()
        self._series = ChosenSeries(self.name, self.chosen.get("series", DEFAULT_SERIES))
        self._every = int(self.chosen.get("every", 1))
        self._seconds = float(self.chosen.get("seconds", SECONDS))
        self.first_step = 0
        self._pending: dict[str, tuple[int, float, float]] = {}
        """By name: step, time and value of what was not forwarded yet."""
        self._passed_at = float("-inf")
        self._next_step = 0
        self._waiting: deque[Batch] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_leading = self._is_ending = self._has_dropped = False
        self._error: Exception | None = None

    def _check(self) -> None:
        known = {**COMMON, **self.options}
        for key, value in self.chosen.items():
            if key not in known:
                raise ConfigError(unknown(f"live.{self.name}", str(key), known))
            if not isinstance(value, known[key]) or isinstance(value, bool) != (bool in known[key]):
                words = " or ".join(kind.__name__ for kind in known[key])
                raise ConfigError(f"live.{self.name}.{key}: expected {words}, got {value!r}")
        if self.chosen.get("every", 1) < 1 or not self.chosen.get("seconds", SECONDS) >= 0:
            raise ConfigError(f"live.{self.name}: expected `every` of at least 1 and `seconds` of at least 0")
        if self.package is not None and not _is_installed(self.package):
            raise MissingExtra(f"live.{self.name}", self.extra or self.name)

    # What a sink does, on the writer's thread

    def open(self, header: RunHeader) -> None:
        """Keep the header; the tool is started with the first numbers."""
        self.header = header
        self.first_step = header.first_step or 0
        self._series.keep_recorded(header.config.get("statistics"))
        self._is_leading = header.rank == int(min(header.config.get("ranks") or [0]))

    def write(self, record: StepRecord) -> None:
        """Keep what is chosen of a step; raises what the tool raised, so that the Monitor switches this sink off."""
        if not self._is_leading:
            return
        if self._error is not None:
            raise self._error
        moment = record.scalars.time
        for name, value in {**self.always(record), **self._series.values(record)}.items():
            self._pending[name] = record.step, moment, value
        now = time.monotonic()
        if record.step >= self._next_step and now - self._passed_at >= self._seconds:
            self._passed_at, self._next_step = now, (record.step // self._every + 1) * self._every
            self._pass_on()

    def always(self, record: StepRecord) -> Values:
        """Return numbers that are forwarded whatever was chosen."""
        return {}

    def incident_came(self, incident: Incident) -> None:  # noqa: B027 - most tools have no place for it
        """Take note of an incident; called on the writer's thread, and never waits."""

    def note(self, parts_off: PartsOff, num_refused: int) -> None:  # noqa: B027 - most tools have no place for it
        """Do nothing: what failed is in the run."""

    def close(self, state: str, error: str | None) -> None:
        """Pass on the rest and end the tool's run; waits for it, but not for ever."""
        if not self._is_leading or self._error is not None:
            return
        self._pass_on()
        if self._thread is None:
            return
        with self._changed:
            self._is_ending, self._state = True, state
            self._changed.notify_all()
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            log.warning("live.%s takes too long: some numbers were not forwarded", self.name)
        elif self._error is not None:
            raise self._error

    def _pass_on(self) -> None:
        steps: dict[int, Batch] = {}
        for name, (step, moment, value) in self._pending.items():
            steps.setdefault(step, Batch(step, moment, {})).values[name] = value
        self._pending = {}
        if not steps:
            return
        with self._changed:
            self._waiting += [steps[step] for step in sorted(steps)]
            if len(self._waiting) > MOST_WAITING and not self._has_dropped:
                self._has_dropped = True
                log.warning("live.%s can't keep up: some steps are dropped; raise `every`", self.name)
            while len(self._waiting) > MOST_WAITING:
                self._waiting.popleft()
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"vario-live-{self.name}", daemon=True)
            self._thread.start()

    # On a thread of its own

    def _work(self) -> None:
        try:
            self.start()
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self._is_ending)
                    batches = list(self._waiting)
                    self._waiting.clear()
                    is_ending = self._is_ending
                if batches:
                    self.send(batches)
                if is_ending:
                    break
                with self._changed:
                    self._changed.wait_for(lambda: self._is_ending, SEND_SECONDS)
            self.end(self._state)
        except Exception as error:  # noqa: BLE001 - given to the Monitor, whose failure policy it is
            self._error = error

    @abstractmethod
    def start(self) -> None:
        """Start a run in the tool."""

    @abstractmethod
    def send(self, batches: Sequence[Batch]) -> None:
        """Pass on some steps, in order."""

    @abstractmethod
    def end(self, state: str) -> None:
        """End the run: `finished`, `crashed` or `interrupted`."""


def _is_installed(package: str) -> bool:
    """Whether a package can be imported. A folder of that name in the working directory, as W&B makes one, is none."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # what it is a part of is missing
        return False
    return spec is not None and spec.origin is not None
