"""Probes: each attaches to a watched model and provides the tensors of one quantity.

A module in this folder adds a probe by defining a class with a `quantity`, a default interval `every` and an `attach`;
its docstring says what the quantity is. Probes never import a framework: the backend knows where tensors are
(`vario.backends.protocols`). A probe that needs more than every backend has lists it in `needs`, and is attached only
if the backend offers it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from vario.backends.protocols.backend import Backend
from vario.backends.protocols.observing import Observer
from vario.config import Config
from vario.core.quantities import PROBES
from vario.training.step_buffer import StepFrames

Needs = tuple[type, ...]
"""Capabilities a probe requires: protocols of `vario.backends.protocols.capabilities`."""


class OptimizerParams(Protocol):
    """Takes the settings of optimizers that are found while the model trains."""

    def optimizer_came(self, optimizer: Any, number: int) -> None:
        """Note an optimizer: the first, second, ... that updates the model."""


class Watching(Protocol):
    """What watching costs, and what it leaves out for that."""

    inside_seconds: float
    """Seconds of the training thread in all parts so far."""
    full_before: int
    """The step before which nothing is skipped."""

    @property
    def is_sparse_step(self) -> bool:
        """Whether sparse parts are skipped in this step."""

    def may_look(self, step: int) -> bool:
        """Whether a cheap look, which is for every step unless steps are very short, is due in this step."""


class Recorder(Protocol):
    """What a probe gets from the Monitor."""

    frames: StepFrames
    """The rows and plain numbers of the step in progress."""

    @property
    def costs(self) -> Watching:
        """What watching costs, and which cheap looks are due."""

    @property
    def config(self) -> Config:
        """The Monitor's options."""

    @property
    def is_leading(self) -> bool:
        """Whether this rank reports for all ranks."""

    @property
    def params(self) -> OptimizerParams:
        """The hyper-parameters of the run, for what finds more of them."""

    def observer(self, quantity: str, scale: Callable[[], Any] | None = None) -> Observer:
        """Return the Observer of a quantity; it divides tensors by `scale()`."""

    def guarded(self, part: str, call: Callable[..., None]) -> Callable[..., None]:
        """Return the same call, which switches the part off instead of raising."""

    def log(self, **values: Any) -> None:
        """Log plain numbers of this step."""

    def on_step_ended(self, call: Callable[[float], None]) -> None:
        """Call `call` with the seconds since the previous step, when the step's updates are complete."""


class Probe(Protocol):
    """Records one quantity. It may also have `needs`: the capabilities without which it is not attached.

    A probe of plain numbers that can do without the events that light steps leave out (see
    `vario.backends.protocols.events`) has `sees_light_steps = True`; with any other one, no step is light. A probe of
    tensors needs no events in steps that its Observer does not watch.
    """

    quantity: ClassVar[str]
    every: ClassVar[int]

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the events of the watched model."""


__all__ = ["PROBES", "Probe", "Recorder"]
