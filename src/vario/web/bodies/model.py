"""The model of a run, and what the run was started with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from vario.runs.files.status import RankState
from vario.web.bodies.runs import Session


class Parameter(TypedDict):
    """One parameter of the model."""

    name: str
    shape: list[int]
    dtype: str | None
    trainable: bool
    shared_with: list[str]
    count: int
    """How many numbers it has."""
    latest: Mapping[str, float]
    """Its newest numbers, by `quantity|statistic`."""


# `class` is a word of Python, so it cannot be a field of the class below.
_Class = TypedDict("_Class", {"class": str})


class Module(_Class):
    """One module of the model."""

    name: str
    depth: int
    num_parameters: int
    """How many numbers its parameters have, with all modules inside it."""
    own_parameters: int
    """The same without the modules inside it."""
    share: float
    """Of all parameters of the model."""
    parameters: list[Parameter]
    latest: Mapping[str, float]
    """Its newest numbers, by `quantity|statistic`."""


class Memory(TypedDict):
    """Bytes at the peak; null where nobody looked."""

    predicted: float | None
    measured: float | None
    of: Literal["device", "process"]


class Model(TypedDict):
    """Modules in model order."""

    modules: list[Module]
    num_parameters: int
    memory: Memory


class PartOff(TypedDict):
    """A part of the monitor that was switched off, or a quantity that could not be merged."""

    rank: int | None
    part: str
    step: int | None
    error: str


class Settings(TypedDict):
    """What a run was started with, and what went wrong with watching it."""

    config: Mapping[str, Any]
    versions: Mapping[str, str]
    command: str
    path: Path
    host: str
    engine: str | None
    parts_off: list[PartOff]
    dropped_steps: int
    sessions: list[Session]
    mesh: Mapping[str, int]
    ranks: list[RankState]
    world_size: int
