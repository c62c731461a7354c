"""The background thread between the training thread and the sinks."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from vario.core.records import StepRecord

MAX_WAITING_STEPS = 16
"""Steps that may wait to be written, and so the most a kill can lose."""
MAX_WAIT_SECONDS = 1.0
"""How long training waits for a writer that is that far behind, before a step goes unrecorded."""
AT_ONCE_SECONDS = 1e-3
"""A record that took longer to build had to wait for its device."""

Build = Callable[[], StepRecord]


class Writer:
    """Waits for the device, builds each step's record and hands it on, in step order, off the training thread."""

    def __init__(self, write: Callable[[Sequence[StepRecord]], None], failed: Callable[[Exception], None]) -> None:
        """`write` gets the records of steps that wait, one or more; `failed` is told of one that cannot be built."""
        self._write = write
        self._failed = failed
        self._waiting: deque[Build] = deque()
        """Steps stay here until they are delivered."""
        self._changed = threading.Condition(threading.Lock())
        self._closing = False
        self.num_refused = 0
        self._thread = threading.Thread(target=self._run, name="vario-writer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._closing:
                        return
                    self._changed.wait()
                builds = list(self._waiting)
            self._deliver(builds)
            with self._changed:
                for _ in builds:
                    self._waiting.popleft()
                del builds  # or what these steps held would stay until the next one comes
                self._changed.notify_all()

    def _deliver(self, builds: Sequence[Build]) -> None:
        records: list[StepRecord] = []
        for build in builds:
            began = time.monotonic()
            try:
                records.append(build())
            except Exception as error:  # noqa: BLE001 - the Monitor's failure policy
                self._failed(error)
            # Steps that are there go together; one that had to be waited for is written at once.
            if records and time.monotonic() - began > AT_ONCE_SECONDS:
                self._write(records)
                records = []
        if records:
            self._write(records)

    def runs_here(self) -> bool:
        """Whether the calling thread is the writer's own."""
        return threading.current_thread() is self._thread

    def put(self, build: Build) -> bool:
        """Hand over one step; False when the writer is too far behind to take it."""
        with self._changed:
            if len(self._waiting) >= MAX_WAITING_STEPS and not self._changed.wait_for(
                lambda: len(self._waiting) < MAX_WAITING_STEPS, MAX_WAIT_SECONDS
            ):
                self.num_refused += 1
                return False
            self._waiting.append(build)
            if len(self._waiting) == 1:
                self._changed.notify_all()
        return True

    def wait(self) -> None:
        """Wait until everything that was handed over is written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)

    def close(self) -> None:
        """Write everything that waits, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
