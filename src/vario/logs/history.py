"""The content of a log: curves over steps, progress, speed, and notes for the reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

Steps = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

LOSS, RATE, GRADIENT_NORM = "loss", "learning_rate", "grad_norm"
"""The names every format uses for these three."""


@dataclass(frozen=True)
class Curve:
    """One metric over steps, as logged; steps without a value are absent."""

    steps: Steps
    values: Values
    epochs: Values
    """NaN if unknown."""
    times: Values
    """Unix seconds; NaN if unknown."""

    def __len__(self) -> int:
        return len(self.steps)

    def where(self, chosen: npt.NDArray[np.bool_]) -> Curve:
        """Return the selected points."""
        return Curve(self.steps[chosen], self.values[chosen], self.epochs[chosen], self.times[chosen])


@dataclass(frozen=True)
class Pace:
    """How long steps took, measured over intervals of steps, oldest first."""

    steps: Steps
    """The last step of each interval."""
    seconds_per_step: Values
    source: str
    """Where it comes from, for example `checkpoint_times`."""


@dataclass(frozen=True)
class Best:
    """The checkpoint that a trainer recorded as the best."""

    value: float | None
    step: int | None
    checkpoint: str | None
    """As the trainer wrote it: it may be relative, or a path on another machine."""


@dataclass(frozen=True)
class Note:
    """A remark for the reader: its kind and its values. Reports have the text."""

    kind: str
    about: Mapping[str, str | int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """Everything that one log says about a training run."""

    path: Path
    """The file or folder that was read."""
    format: str
    curves: Mapping[str, Curve]
    step: int | None
    epoch: float | None
    max_steps: int | None = None
    num_epochs: float | None = None
    best: Best | None = None
    pace: Pace | None = None
    runtime_seconds: float | None = None
    """How long the last session took, if the log says so at its end."""
    is_finished: bool | None = None
    """None if the log does not say."""
    written: float | None = None
    """When the file was last written; Unix seconds."""
    notes: tuple[Note, ...] = ()

    @property
    def loss(self) -> Curve:
        """The training loss; empty if none was logged."""
        return self.curves.get(LOSS, EMPTY)


EMPTY = Curve(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0))


def pace_between(steps: Steps, seconds: Values, source: str) -> Pace | None:
    """Return the pace between points in time; intervals in which steps or clock do not advance are skipped."""
    # A clock with whole seconds may not advance between steps: only use the points at which it does.
    known = np.isfinite(seconds)
    steps, seconds = steps[known], seconds[known]
    moved = np.append(True, np.diff(seconds) != 0)[: len(seconds)]
    steps, seconds = steps[moved], seconds[moved]
    advanced, elapsed = np.diff(steps), np.diff(seconds)
    usable = (advanced > 0) & (elapsed > 0)
    if not usable.any():
        return None
    return Pace(steps[1:][usable], elapsed[usable] / advanced[usable], source)


def last_step(curves: Mapping[str, Curve]) -> int | None:
    """The highest step of any curve."""
    return max((int(curve.steps[-1]) for curve in curves.values()), default=None)


def last_epoch(curves: Mapping[str, Curve]) -> float | None:
    """The highest epoch at any point."""
    known = [curve.epochs[np.isfinite(curve.epochs)] for curve in curves.values()]
    return max((float(epochs.max()) for epochs in known if len(epochs)), default=None)


def renamed(curves: Mapping[str, Curve], names: Mapping[str, str]) -> dict[str, Curve]:
    """Return the same curves under other names."""
    return {names.get(name, name): curve for name, curve in curves.items()}
