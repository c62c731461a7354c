"""Sending notices: each channel has its own thread and short queue, so nothing waits for it."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from vario.core.text import reason
from vario.notices import NOTICES, Message, Notice, least, ways
from vario.notices.callback import Callback
from vario.rules.api.alerts import SEVERITIES, Incident

log = logging.getLogger("vario")

MOST_WAITING = 64
"""The most messages in one channel's queue; further ones are dropped."""
MOST_FAILURES = 3
"""Failures in a row after which a channel is disabled."""
CLOSE_SECONDS = 5.0
"""How long the end of a run waits for unsent messages."""

GIVE_UP_SECONDS = 1.0
"""How long it waits for a channel to stop what it started."""

Failed = Callable[[str, Exception], None]


class Notifying(Protocol):
    """Anything with the option `notify`: a Config."""

    @property
    def notify(self) -> Any:
        """A function or a table."""


class Notices:
    """Sends incidents to all channels of a config. Nothing here blocks or raises, except the constructor."""

    def __init__(self, config: Notifying, rank: int | None = None, failed: Failed | None = None) -> None:
        """`rank` is set on ranks other than the leading one; `failed` is called with a disabled channel and the
        reason."""
        self._least = SEVERITIES.index(least(config.notify))
        self._is_leading = rank is None
        self._failed = failed
        self._run = ""
        self._step: int | None = None
        made = {name: NOTICES.get(name)(options, rank) for name, options in ways(config.notify).items()}
        self._ways = [_Way(notice, name, self._given_up, self._progress) for name, notice in made.items()]
        self._every: list[_Way] = []

    def on_incident(self, call: Callable[[Incident], Any]) -> None:
        """Call a function with every incident, whatever its severity, on its own thread."""
        Callback.check(call)
        self._every.append(_Way(Callback(call), "callback", self._given_up, self._progress))

    def send(self, incident: Incident, run_name: str) -> None:
        """Send an incident if it is severe enough; ranks other than the leading one send only pages."""
        message = Message(incident, run_name)
        for way in self._every:
            way.put(message)
        is_urgent = SEVERITIES.index(incident.severity) >= self._least
        if is_urgent and (self._is_leading or incident.severity == "page"):
            for way in self._ways:
                way.put(message)

    def stepped(self, step: int, run_name: str) -> None:
        """Record the latest step."""
        is_first = self._step is None
        self._run, self._step = run_name, step
        if is_first:
            for way in self._ways:
                way.start_refreshing()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait for unsent messages, no longer than this."""
        deadline = time.monotonic() + seconds
        for way in (*self._ways, *self._every):
            way.stop()
        for way in (*self._ways, *self._every):
            way.join(max(deadline - time.monotonic(), 0.0))

    def _progress(self) -> tuple[str, int] | None:
        # A rank other than the leading one has nothing to send until it finds something only it knows.
        return None if self._step is None or not self._is_leading else (self._run, self._step)

    def _given_up(self, name: str, error: Exception) -> None:
        if self._failed is not None:
            self._failed(f"notice {name}", error)
        else:
            log.warning("notices by %s are disabled after %d failures in a row", name, MOST_FAILURES)


class _Way:
    """One channel, on its own thread."""

    def __init__(
        self, notice: Notice, name: str, given_up: Failed, progress: Callable[[], tuple[str, int] | None]
    ) -> None:
        self._notice = notice
        self._name = name
        self._given_up = given_up
        self._progress = progress
        self._queue: queue.Queue[Message | None] = queue.Queue(MOST_WAITING)
        self._num_failures = 0
        self._told: set[str] = set()
        self._is_off = False
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start_refreshing(self) -> None:
        """Start publishing the latest step, if this channel can."""
        if hasattr(self._notice, "refresh") and self._progress() is not None:
            self.start()

    def put(self, message: Message) -> None:
        """Queue a message; dropped if the queue is full."""
        if self._is_off:
            return
        self.start()
        try:
            self._queue.put_nowait(message)
        except queue.Full:
            self._tell("full", f"notices by {self._name} are slow: {MOST_WAITING} are queued, so some are dropped")

    def start(self) -> None:
        """Start the thread; a run without incidents needs none."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"vario-notice-{self._name}", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Send the queued messages, then stop."""
        self._closing.set()
        # A full queue needs no such sign: `_closing` is checked after each message.
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)

    def join(self, seconds: float) -> None:
        """Wait until it has stopped."""
        if self._thread is None:
            return
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._tell("late", f"notices by {self._name} take too long: some were not sent")
            # A sending thread ends with this process; a process that it started would not.
            if (give_up := getattr(self._notice, "give_up", None)) is not None:
                self._is_off = True
                give_up()
                self._thread.join(GIVE_UP_SECONDS)

    def _run(self) -> None:
        refresh: Callable[[str, int], None] | None = getattr(self._notice, "refresh", None)
        seconds: float | None = getattr(self._notice, "refresh_seconds", None)
        while not self._is_off:
            try:
                message = self._queue.get(timeout=0 if self._closing.is_set() else seconds)
            except queue.Empty:
                message = None
            if message is not None:
                self._attempt(lambda message=message: self._notice.send(message))  # type: ignore[misc]
            elif refresh is not None and (progress := self._progress()) is not None:
                self._attempt(lambda progress=progress: refresh(*progress))  # type: ignore[misc]
            if message is None and self._closing.is_set() and self._queue.empty():
                return

    def _attempt(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - the failure policy: a way that fails is given up, nothing more
            self._num_failures += 1
            self._tell("failed", f"a notice by {self._name} was not sent: {reason(error)}")
            if self._num_failures >= MOST_FAILURES:
                self._is_off = True
                self._given_up(self._name, error)
        else:
            self._num_failures = 0

    def _tell(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            log.warning("%s", text)
