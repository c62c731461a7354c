"""What every backend has to implement: everything recorded for all frameworks builds on it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any, TypeVar

from vario.backends.protocols.events import Events, LoopEvents
from vario.backends.protocols.observing import NamedTensors, Summaries
from vario.core.clock import Clock
from vario.core.errors import ModelError
from vario.core.records import Structure

Capability = TypeVar("Capability")


class Backend(LoopEvents, ABC):
    """A watched model: its rank and versions, its parameters, and the events of its training loop.

    `protocols/events.py` defines the events and keeps the calls that subscribed to them. Everything else is a
    capability (`protocols/capabilities.py`), which a backend may lack.
    """

    rank: int
    world_size: int
    versions: dict[str, str]
    """Versions of the framework and of what it was built for."""
    clock: Clock
    """The step in progress; the backend advances it with the loop."""
    has_model: bool = True
    """Whether there is a model, so that what the backend does not offer is missing from the run."""

    @property
    def is_light(self) -> bool:
        """Whether the step in progress is a light one; see `protocols/events.py`."""
        return False

    @property
    def is_regular(self) -> bool:
        """Whether the loop does the same in every step, so that some may be light."""
        return False

    @property
    def num_backwards(self) -> int:
        """Backward passes of each step, if the loop does the same in every step, however much that is; else 0."""
        return 1 if self.is_regular else 0

    @abstractmethod
    def summaries(self, eps: float, columns: frozenset[str]) -> Summaries:
        """Return what reduces this model's tensors."""

    @abstractmethod
    def structure(self) -> Structure:
        """Return modules and parameters, as in `structure.json`."""

    @abstractmethod
    def holds(self, model: Any) -> bool:
        """Whether this backend watches the model, or a part of it."""

    @abstractmethod
    def weights(self, optimizer: Any) -> NamedTensors:
        """Return names and values of the chosen parameters of an optimizer; without one, of all trainable ones."""

    @abstractmethod
    def frozen_weights(self) -> NamedTensors:
        """Return names and values of the chosen frozen parameters."""

    @abstractmethod
    def offer(self, capability: type[Capability]) -> Capability | None:
        """Return the implementation of a protocol in `capabilities.py`; None if there is none."""

    @abstractmethod
    def attach(self, events: Events) -> None:
        """Start following the training loop."""

    @abstractmethod
    def step_began(self) -> None:
        """Adapt to the quantities that are recorded in the step that begins."""

    @abstractmethod
    def updated_by_hand(self) -> None:
        """Take an update that the loop reports (`monitor.step()`)."""

    @abstractmethod
    def finish(self) -> bool:
        """Training has ended: report an update that nothing has shown yet.

        Returns whether a backward pass or an update has raised since: then what was observed belongs to no step.
        """

    @abstractmethod
    def detach(self) -> None:
        """Leave the model and the optimizer exactly as they were."""


def needed(backend: Backend, capability: type[Capability]) -> Capability:
    """Return a capability that a probe lists in its `needs`: the Monitor attaches the probe only if it is offered."""
    offered = backend.offer(capability)
    if offered is None:
        raise ModelError(f"{type(backend).__name__} does not offer {in_words(capability)}")
    return offered


def in_words(capability: type) -> str:
    """Return the name of a capability in words: `ModuleTensors` is "module tensors"."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", capability.__name__).lower()
