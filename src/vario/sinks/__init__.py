"""Sinks: where the records of a run go.

A module in this folder adds a sink by defining a class with a `name`. The monitor creates it without arguments and
calls it from a single thread, never from the training thread.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from vario.core.records import StepRecord
from vario.core.registry import Registry
from vario.core.run_header import RunHeader

PartsOff = list[dict[str, Any]]
"""Parts of the monitor that failed and were switched off: `{"part", "step", "error"}` each."""


class Sink(Protocol):
    """Takes the records of one rank, in step order.

    A sink may also have `write_all(records)`, which is then called once with all waiting records, and `derive(frames,
    numbers)`, which may add plain numbers to a step before any sink gets its record.
    """

    name: ClassVar[str]

    @property
    def first_step(self) -> int:
        """The number of the first step; known once the sink is open."""
        ...

    def open(self, header: RunHeader) -> None:
        """Prepare to write; raises RunError if this run must not be written there."""
        ...

    def write(self, record: StepRecord) -> None:
        """Write one step, or values logged late for the last one."""
        ...

    def note(self, parts_off: PartsOff, num_refused: int) -> None:
        """Record the full list of parts that are switched off, and how many steps were never handed over."""
        ...

    def close(self, state: str, error: str | None) -> None:
        """Record how the run ended (`finished`, `crashed` or `interrupted`) and finish all work."""
        ...


def _sink_name(part: object) -> str | None:
    name = getattr(part, "name", None)
    is_sink = isinstance(part, type) and isinstance(name, str) and hasattr(part, "write") and hasattr(part, "open")
    return name if is_sink else None


SINKS: Registry[type[Sink]] = Registry("sinks", __name__, _sink_name)
