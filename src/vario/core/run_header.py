"""What is known of a run before its first step."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vario.core.params import MOST_PARAMS, Params
from vario.core.records import Structure


class RunParams:
    """The hyper-parameters of a run. More may be found at its first steps: read them when they are needed."""

    def __init__(self) -> None:
        self.values: Params = {}
        self.sources: dict[str, str] = {}
        """By name: where it was found."""

    def add(self, source: str, found: Params) -> None:
        """Add what one source has; a name that is known stays as it is. Readers on other threads see all or nothing."""
        fresh = {name: value for name, value in found.items() if name not in self.values}
        room = max(0, MOST_PARAMS - len(self.values))
        fresh = dict(list(fresh.items())[:room])
        self.sources = {**self.sources, **dict.fromkeys(fresh, source)}
        self.values = {**self.values, **fresh}


NotOffered = list[dict[str, str]]
"""Quantities that the backend of this model does not offer: `{"quantity", "missing"}` each."""


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
    job: str | None = None
    """What tells jobs apart that run at the same time, alike on all hosts of a job; None where nobody knew."""
    may_start_again: bool = False
    """Whether the launcher is one that may start the ranks of this job again."""
    not_offered: NotOffered = field(default_factory=list)
    """What was to be watched, and what the backend lacks for it, in words."""
    group: str | None = None
    """What the run has in common with others that its process makes, one after the other."""
    params: RunParams = field(default_factory=RunParams)
    """Hyper-parameters."""
