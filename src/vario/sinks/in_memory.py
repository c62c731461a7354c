"""The sink that keeps everything in a list: for tests, and to inspect a few steps in a notebook."""

from __future__ import annotations

from typing import ClassVar

from vario.core.records import Scalars, StepRecord
from vario.core.run_header import RunHeader
from vario.sinks import PartsOff


class InMemory:
    """Keeps one StepRecord per step in `records`."""

    name: ClassVar[str] = "in_memory"

    def __init__(self) -> None:
        self.header: RunHeader | None = None
        self.first_step = 0
        self.records: list[StepRecord] = []
        self.parts_off: PartsOff = []
        self.num_refused = 0
        self.state = "running"
        self.error: str | None = None

    def open(self, header: RunHeader) -> None:
        """Keep the header."""
        self.header = header
        self.first_step = header.first_step or 0

    def write(self, record: StepRecord) -> None:
        """Keep one step, or add late values to the last one."""
        if self.records and self.records[-1].step == record.step:
            last = self.records.pop()
            scalars = Scalars(record.step, last.scalars.time, {**last.scalars.values, **record.scalars.values})
            collectives = [*last.collectives, *record.collectives]
            record = StepRecord(record.step, [*last.frames, *record.frames], scalars, collectives)
        self.records.append(record)

    def note(self, parts_off: PartsOff, num_refused: int) -> None:
        """Keep the parts that are switched off and the number of steps never handed over."""
        self.parts_off = parts_off
        self.num_refused = num_refused

    def close(self, state: str, error: str | None) -> None:
        """Keep how the run ended."""
        self.state = state
        self.error = error
