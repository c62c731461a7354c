"""The model of a run, and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from vario.runs.files.origin import Origin
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
    """The number of elements."""
    latest: Mapping[str, float]
    """Its latest numbers, by `quantity|statistic`."""


# `class` is a Python keyword, so it cannot be a field of the class below.
_Class = TypedDict("_Class", {"class": str})


class Module(_Class):
    """One module of the model."""

    name: str
    depth: int
    num_parameters: int
    """The number of elements of its parameters, including those of modules inside it."""
    own_parameters: int
    """The number of elements without the modules inside it."""
    share: float
    """The share of all parameters of the model."""
    parameters: list[Parameter]
    latest: Mapping[str, float]
    """Its latest numbers, by `quantity|statistic`."""


class Memory(TypedDict):
    """Peak bytes; null if unknown."""

    predicted: float | None
    measured: float | None
    of: Literal["device", "process"]


class Model(TypedDict):
    """Modules in model order."""

    modules: list[Module]
    num_parameters: int
    memory: Memory


class PartOff(TypedDict):
    """A part of the monitor that was disabled, or a quantity that could not be merged."""

    rank: int | None
    part: str
    step: int | None
    error: str


class NotOffered(TypedDict):
    """A quantity that was to be watched, and what the model's framework does not offer for it."""

    quantity: str
    missing: str


class RunOrigin(TypedDict):
    """What a run was started from, and what its script printed."""

    origin: Origin
    diff: str
    """The changes since the commit, cut."""
    output: str
    """The first and the last lines that the script printed."""


class Settings(TypedDict):
    """The settings of a run, and problems with watching it."""

    params: Mapping[str, Any]
    """Hyper-parameters, given or found."""
    param_sources: Mapping[str, str]
    """Where each was found: given, argparse, optimizer, ..."""
    config: Mapping[str, Any]
    versions: Mapping[str, str]
    command: str
    path: Path
    host: str
    engine: str | None
    parts_off: list[PartOff]
    not_offered: list[NotOffered]
    dropped_steps: int
    sessions: list[Session]
    mesh: Mapping[str, int]
    ranks: list[RankState]
    world_size: int
