"""Probes: each attaches to a watched model and yields the tensors of the quantity it declares.

A module in this folder adds a probe by defining a class with a `quantity`, the interval `every` at which it is watched
unless said otherwise, and an `attach`; its docstring says what the quantity is. Probes never import a framework: the
watched model knows where its tensors are (`vario.backends.base.Watched`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from vario.backends.base import LateObserver, Observer, StepIdObserver, Watched
from vario.config import Config
from vario.core.quantities import PROBES
from vario.training.step_buffer import StepFrames


class ProbeObserver(Observer, LateObserver, StepIdObserver, Protocol):
    """One quantity's way into the step in progress."""


class Recorder(Protocol):
    """What a probe gets from the Monitor."""

    frames: StepFrames
    """The rows and plain numbers of the step in progress."""

    @property
    def config(self) -> Config:
        """The Monitor's options."""

    @property
    def is_leading(self) -> bool:
        """Whether this rank speaks for all."""

    def observer(self, quantity: str, scale: Callable[[], Any] | None = None) -> ProbeObserver:
        """A quantity's way into the step in progress; what it sees is divided by `scale()`."""

    def guarded(self, part: str, call: Callable[..., None]) -> Callable[..., None]:
        """The same call, which switches the part off instead of raising."""

    def log(self, **values: Any) -> None:
        """Keep plain numbers of this step."""

    def on_step_ended(self, call: Callable[[float], None]) -> None:
        """Call with the seconds since the step before, when the step's updates are complete."""


class Probe(Protocol):
    """Yields one quantity."""

    quantity: ClassVar[str]
    every: ClassVar[int]

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to the watched model's events."""


__all__ = ["PROBES", "Probe", "Recorder"]
