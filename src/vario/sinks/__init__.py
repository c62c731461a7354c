"""Sinks: where the records of a run go.

A module in this folder adds a sink by defining a class with a `name`. The monitor makes it without arguments and
calls it from one thread of its own, never from the training thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from vario.core.records import StepRecord, Structure
from vario.core.registry import Registry

PartsOff = list[dict[str, Any]]
"""Parts of the monitor that failed and were switched off: `{"part", "step", "error"}` each."""


@dataclass(frozen=True)
class RunHeader:
    """What a sink is told before the first record."""

    path: Path
    """The run's folder, which need not exist yet."""
    rank: int
    world_size: int
    config: dict[str, Any]
    """`Config.to_json()`."""
    versions: dict[str, str]
    command: str
    structure: Structure
    first_step: int | None
    """Number of the first step; None leaves the choice to the sink."""
    resume: bool
    started: float
    """Unix seconds."""
    mesh: dict[str, int] = field(default_factory=dict)
    """How the ranks are arranged: the size of each dimension, as in `{"data": 2, "tensor": 2}`."""
    coordinates: dict[str, int] = field(default_factory=dict)
    """Where this rank stands in it."""
    group: str | None = None
    """What the run has in common with others that its process makes, one after the other."""


class Sink(Protocol):
    """Takes the records of one rank, in step order.

    A sink may also have `write_all(records)`: it is then called once with all records that are waiting.
    """

    name: ClassVar[str]

    @property
    def first_step(self) -> int:
        """The number the first step has; known once the sink is open."""
        ...

    def open(self, header: RunHeader) -> None:
        """Get ready to write; raises a RunError when this run must not be written there."""
        ...

    def write(self, record: StepRecord) -> None:
        """Keep one step, or what was logged late for the last one."""
        ...

    def note(self, parts_off: PartsOff, num_refused: int) -> None:
        """Keep the whole list of parts that are switched off, and how many steps were never handed over."""
        ...

    def close(self, state: str, error: str | None) -> None:
        """Keep how the run ended (`finished`, `crashed` or `interrupted`) and finish all work."""
        ...


def _sink_name(part: object) -> str | None:
    name = getattr(part, "name", None)
    is_sink = isinstance(part, type) and isinstance(name, str) and hasattr(part, "write") and hasattr(part, "open")
    return name if is_sink else None


SINKS: Registry[type[Sink]] = Registry("sinks", __name__, _sink_name)
