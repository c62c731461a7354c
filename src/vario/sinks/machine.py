"""What the machine does, read from a thread of its own and added to the plain numbers of the steps it falls on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import ClassVar

from vario.core.machine_options import Options
from vario.core.process.at_work import prepare
from vario.core.records import Frame, StepRecord
from vario.core.run_header import RunHeader
from vario.machine.machine import Machine, open_machine
from vario.machine.place import local_ranks, reads_host
from vario.sinks import PartsOff

CLOSE_SECONDS = 0.5
"""How long the end of a run waits for a reading in progress."""
MAIN = "step_seconds"
"""The plain number that only the main record of a step has, and not what is logged after it."""


class MachineReadings:
    """Reads the machine from the first step on. It writes nothing itself: it adds numbers to records."""

    name: ClassVar[str] = "machine"
    first_step = 0

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or {"seconds": 1.0}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._machine: Machine | None = None
        self._error: Exception | None = None

    def open(self, header: RunHeader) -> None:
        """Take note of the run; reading begins with its first step."""
        self.first_step = header.first_step or 0
        self._header = header

    def derive(self, frames: Sequence[Frame], numbers: dict[str, float]) -> None:
        """Add what was read since the last record to the plain numbers of a step."""
        if self._error is not None:
            raise self._error
        if self._machine is not None and MAIN in numbers:
            numbers.update(self._machine.take(time.monotonic()))
        elif self._thread is None:
            prepare()
            self._thread = threading.Thread(target=self._run, name="vario-machine", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        header = self._header
        try:
            with ExitStack() as held:
                machine = open_machine(
                    self._options,
                    header.path,
                    reads_host(header.rank, header.world_size, header.config.get("ranks") or (), os.environ),
                    local_ranks(header.world_size, os.environ),
                    os.environ,
                    held,
                )
                machine.look(time.monotonic())
                self._machine = machine
                while not self._closing.wait(self._options["seconds"]):
                    machine.look(time.monotonic())
        except Exception as error:  # noqa: BLE001 - raised where the Monitor guards it
            self._error = error

    def write(self, record: StepRecord) -> None:
        """Do nothing: the numbers are in the record."""

    def note(self, parts_off: PartsOff, num_refused: int) -> None:
        """Do nothing: what failed is in the run."""

    def close(self, state: str, error: str | None) -> None:
        """Stop reading. A reading that takes longer ends with the process."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
