"""The backend without a model: for jobs that only log plain numbers."""

from __future__ import annotations

import os
from typing import Any

from vario.backends import launchers
from vario.backends.numpy.summaries import NumpySummaries
from vario.backends.protocols.backend import Backend, Capability
from vario.backends.protocols.events import Events, LoopCalls
from vario.backends.protocols.observing import NamedTensors
from vario.core.clock import Clock
from vario.core.records import Structure


class NoModel:
    """Stands where a model would."""


class NoModelBackend(Backend):
    """There is no loop to follow: whoever logs says when a step ends."""

    has_model = False

    def __init__(self) -> None:
        super().__init__(LoopCalls())
        self.rank, self.world_size = launchers.rank_and_size(os.environ)
        self.versions = {}
        self.clock = Clock()
        self.clock.manual = True

    def summaries(self, eps: float, columns: frozenset[str]) -> NumpySummaries:
        """Return what turns logged values into numbers."""
        return NumpySummaries(eps)

    def structure(self) -> Structure:
        """Return no modules and no parameters."""
        return {"modules": [], "parameters": [], "groups": []}

    def holds(self, model: Any) -> bool:
        """Always False: there is no model."""
        return False

    def weights(self, optimizer: Any) -> NamedTensors:
        """Return nothing."""
        return [], []

    def frozen_weights(self) -> NamedTensors:
        """Return nothing."""
        return [], []

    def offer(self, capability: type[Capability]) -> Capability | None:
        """Return None: everything that a backend may offer is about a model."""
        return None

    def attach(self, events: Events) -> None:
        """Do nothing: there is nothing to follow."""

    def detach(self) -> None:
        """Do nothing: nothing was changed."""

    def step_began(self) -> None:
        """Do nothing: there are no hooks."""

    def updated_by_hand(self) -> None:
        """Do nothing: no weights were updated."""

    def finish(self) -> bool:
        """Return False: no update can have failed."""
        return False
