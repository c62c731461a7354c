"""The background thread between the training thread and the sinks."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from vario.core.process.at_work import at_work, let_forks_pass, prepare
from vario.core.records import StepRecord
from vario.sinks import Sink

MAX_WAITING_STEPS = 16
"""Steps that may wait to be written: the most that a kill can lose."""
ENOUGH_STEPS = MAX_WAITING_STEPS // 2
"""With this many steps waiting, write without further delay."""
REST_SECONDS = 0.1
"""How long the thread rests after a write. Steps that arrive meanwhile are written together: every wake-up takes the
interpreter lock from a loop that may need it."""
MAX_WAIT_SECONDS = 1.0
"""How long training waits for a writer that is that far behind before it drops a step."""
AT_ONCE_SECONDS = 2e-2
"""A record that took longer to build had to wait for its device, not only for the interpreter lock."""

Build = Callable[[], "StepRecord | None"]
"""Makes a step's record; or does something else that has to be done here, and returns None."""


class Writer:
    """Waits for the device, builds each step's record and passes it on, in step order, off the training thread."""

    def __init__(
        self,
        write: Callable[[Sequence[StepRecord]], None],
        failed: Callable[[Exception], None],
        wrote: Callable[[float, Sequence[StepRecord]], None] | None = None,
    ) -> None:
        """`write` gets the records of waiting steps, one or more; `failed` gets the error of one that cannot be built.

        `wrote` gets the CPU time that some steps took.
        """
        self._write = write
        self._wrote = wrote
        self._failed = failed
        self._waiting: deque[Build] = deque()
        """Steps stay here until they are delivered."""
        self._changed = threading.Condition(threading.Lock())
        self._closing = False
        self._num_waiters = 0
        self.num_refused = 0
        self._thread = threading.Thread(target=self._run, name="vario-writer", daemon=True)
        prepare()
        self._thread.start()

    @property
    def _is_urgent(self) -> bool:
        return self._closing or self._num_waiters > 0 or len(self._waiting) >= ENOUGH_STEPS

    def _run(self) -> None:
        rested = 0.0
        while True:
            with self._changed:
                while not self._waiting:
                    if self._closing:
                        return
                    self._changed.wait()
                self._changed.wait_for(lambda: self._is_urgent, rested + REST_SECONDS - time.monotonic())
                builds = list(self._waiting)
            with at_work():
                self._deliver(builds)
            rested = time.monotonic()
            with self._changed:
                for _ in builds:
                    self._waiting.popleft()
                del builds  # otherwise the memory of these steps would stay until the next step
                self._changed.notify_all()

    def _deliver(self, builds: Sequence[Build]) -> None:
        records: list[StepRecord] = []
        written: list[StepRecord] = []
        busy = time.thread_time()
        for build in builds:
            began = time.monotonic()
            try:
                if (record := build()) is not None:
                    records.append(record)
            except Exception as error:  # noqa: BLE001 - the Monitor's failure policy
                self._failed(error)
            # Steps that are ready go together; one that had to be waited for is written at once.
            if records and time.monotonic() - began > AT_ONCE_SECONDS:
                self._write(records)
                written += records
                records = []
            let_forks_pass()
        if records:
            self._write(records)
            written += records
        if self._wrote is not None and written:
            self._wrote(time.thread_time() - busy, written)

    @property
    def thread_number(self) -> int | None:
        """The thread's number, as `threading.get_ident` returns it there."""
        return self._thread.ident

    def runs_here(self) -> bool:
        """Whether the calling thread is the writer thread."""
        return threading.current_thread() is self._thread

    def put(self, build: Build) -> bool:
        """Hand over one step; False if the writer is too far behind to take it."""
        with self._changed:
            if len(self._waiting) >= MAX_WAITING_STEPS and not self._changed.wait_for(
                lambda: len(self._waiting) < MAX_WAITING_STEPS, MAX_WAIT_SECONDS
            ):
                self.num_refused += 1
                return False
            self._waiting.append(build)
            if len(self._waiting) in (1, ENOUGH_STEPS):
                self._changed.notify_all()
        return True

    def wait(self) -> None:
        """Wait until everything handed over is written."""
        with self._changed:
            self._num_waiters += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: not self._waiting)
            finally:
                self._num_waiters -= 1

    def close(self) -> None:
        """Write everything that is waiting, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()


def give_to_sinks(
    sinks: Mapping[str, Sink],
    records: Sequence[StepRecord],
    guarded: Callable[[str, Callable[..., None]], Callable[..., None]],
) -> None:
    """Pass some steps to every sink: all at once to one that takes them so, to the others step by step."""
    one_by_one = []
    for name, sink in sinks.items():
        write_all = getattr(sink, "write_all", None)
        if write_all is None:
            one_by_one.append(guarded(f"sink {name}", sink.write))
        else:
            guarded(f"sink {name}", write_all)(records)
    for record in records:
        for write in one_by_one:
            write(record)


def derivations(
    sinks: Mapping[str, Sink], guarded: Callable[[str, Callable[..., None]], Callable[..., None]]
) -> list[Callable[..., None]]:
    """Return what sinks add to the plain numbers of a record: `derive(frames, numbers)` of those that have it."""
    found = ((name, getattr(sink, "derive", None)) for name, sink in sinks.items())
    return [guarded(f"sink {name}", derive) for name, derive in found if derive is not None]
