"""The background thread between the training thread and the sinks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from vario.records import StepRecord

MAX_WAITING_STEPS = 16
"""Steps that may wait to be written, and so the most a kill can lose."""
MAX_WAIT_SECONDS = 1.0
"""How long training waits for a writer that is that far behind, before a step goes unrecorded."""

Build = Callable[[], StepRecord]


class Writer:
    """Waits for the device, builds each step's record and hands it on, in step order, off the training thread."""

    def __init__(self, deliver: Callable[[Build], None]) -> None:
        self._deliver = deliver
        self._queue: queue.Queue[Build | None] = queue.Queue(MAX_WAITING_STEPS)
        self.num_refused = 0
        self._thread = threading.Thread(target=self._run, name="vario-writer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            build = self._queue.get()
            if build is None:
                return
            self._deliver(build)
            self._queue.task_done()

    def runs_here(self) -> bool:
        """Whether the calling thread is the writer's own."""
        return threading.current_thread() is self._thread

    def put(self, build: Build) -> bool:
        """Hand over one step; False when the writer is too far behind to take it."""
        try:
            self._queue.put(build, timeout=MAX_WAIT_SECONDS)
        except queue.Full:
            self.num_refused += 1
            return False
        return True

    def wait(self) -> None:
        """Wait until everything that was handed over is written."""
        self._queue.join()

    def close(self) -> None:
        """Write everything that waits, then stop."""
        self._queue.put(None)
        self._thread.join()
