"""The NumPy backend: it follows a loop that reports its events."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from vario.backends import launchers
from vario.backends.host_clock import HostMark, host_mark
from vario.backends.numpy.distributions import NumpyDistributions
from vario.backends.numpy.model import Arrays, NumpyModel
from vario.backends.numpy.summaries import NumpySummaries
from vario.backends.protocols.backend import Backend, Capability
from vario.backends.protocols.capabilities import AppliedGradients, DeviceClock, Distributions
from vario.backends.protocols.events import TRAINING_LOOP, Events, LoopCalls
from vario.backends.protocols.gradients import PushedGradients
from vario.backends.protocols.observing import NamedTensors
from vario.core.clock import Clock
from vario.core.errors import ModelError
from vario.core.records import ROOT, Structure
from vario.core.selector import Choice, ancestors

_OFFERED: frozenset[type] = frozenset({AppliedGradients, DeviceClock})
_EVENTS = ("forward_began", "forward_ended", "backward_began", "backward_ended", "update_began", "update_ended")


class NumpyBackend(Backend):
    """Follows one `NumpyModel`."""

    def __init__(self, model: NumpyModel, choice: Choice) -> None:
        super().__init__(LoopCalls())
        if model.is_followed:
            raise ModelError("watch: this NumpyModel is already being watched. Close that Monitor first.")
        self.rank, self.world_size = launchers.rank_and_size(os.environ)
        self.versions = {"numpy": np.__version__}
        self.clock = Clock()
        self._model = model
        names = list(model.parameters)
        choice.check(_modules(names), names)
        self._chosen = choice.parameters(names)
        self._trained = [number for number, name in enumerate(names) if name not in model.frozen]
        self._gradients = PushedGradients([], [])
        self._distributions = NumpyDistributions()

    # Model and parameters

    def summaries(self, eps: float, columns: frozenset[str]) -> NumpySummaries:
        """Return what reduces arrays; all columns are cheap enough to compute always."""
        return NumpySummaries(eps)

    def structure(self) -> Structure:
        """Return the parameters, and the modules that their names imply."""
        parameters = self._model.parameters
        sizes = dict.fromkeys(_modules(list(parameters)), 0)
        for name, array in parameters.items():
            sizes[_parent(name)] += array.size
        modules = [{"name": name, "class": "", "num_parameters": size} for name, size in sizes.items()]
        return {"modules": modules, "parameters": [self._described(name) for name in parameters], "groups": []}

    def _described(self, name: str) -> dict[str, Any]:
        array = self._model.parameters[name]
        is_trained = name not in self._model.frozen
        form = {"shape": list(array.shape), "dtype": str(array.dtype)}
        return {"name": name, **form, "trainable": is_trained, "shared_with": []}

    def holds(self, model: Any) -> bool:
        """Whether `model` is this model or contains it."""
        return model is self._model or (isinstance(model, (list, tuple)) and any(one is self._model for one in model))

    def weights(self, optimizer: Any) -> NamedTensors:
        """Return names and values of the chosen trainable parameters."""
        return self._values(is_frozen=False)

    def frozen_weights(self) -> NamedTensors:
        """Return names and values of the chosen frozen parameters."""
        return self._values(is_frozen=True)

    def _values(self, is_frozen: bool) -> NamedTensors:
        names = [name for name in self._chosen if (name in self._model.frozen) == is_frozen]
        return names, [self._model.parameters[name] for name in names]

    # Capabilities

    def offer(self, capability: type[Capability]) -> Capability | None:
        """Return itself for applied gradients and the host's clock, and what counts elements."""
        offered: Any = self if capability in _OFFERED else None
        if capability is Distributions:
            offered = self._distributions
        return offered  # type: ignore[no-any-return]

    def applied_gradients(self, optimizer: Any) -> NamedTensors:
        """Return names and gradients that are about to change the weights."""
        return self._gradients.named()

    def optimizer_scale(self, optimizer: Any) -> float | None:
        """Return the scale these gradients still have."""
        scale: float | None = self._gradients.scale
        return scale

    def time_mark(self) -> HostMark:
        """Return a mark of the current time."""
        return host_mark()

    def is_behind(self) -> bool:
        """Always False: the host is never behind itself."""
        return False

    # Following the loop

    def attach(self, events: Events) -> None:
        """Start listening to the loop."""
        self._events = events
        self._model.follow({name: events.guarded(TRAINING_LOOP, getattr(self, f"_{name}")) for name in _EVENTS})

    def detach(self) -> None:
        """Stop listening."""
        self._model.follow({})

    def step_began(self) -> None:
        """Do nothing: there are no hooks that depend on what is recorded."""

    def updated_by_hand(self) -> None:
        """Take the end of a step from the loop, which may report nothing else about its updates."""
        if not self.clock.has_update:
            for call in (*self._calls.update_called, *self._calls.update_began, *self._calls.update_ended):
                call(None)

    def finish(self) -> bool:
        """Return whether an update has begun and not ended, because it raised."""
        return self.clock.update_failed

    def _forward_began(self, inputs: tuple[Any, ...]) -> None:
        if self.clock.update_failed:
            self.clock.drop_update()
            self._events.frames.forget_update()
        is_new = self.clock.awaits_pass
        if self.clock.forward_began():
            self._events.step_ended()
        self.clock.pass_began(ROOT)
        self._events.frames.begin_pass(is_new)
        for call in self._calls.pass_began:
            call(ROOT, (inputs, {}))

    def _forward_ended(self, output: Any) -> None:
        for call in self._calls.pass_ended:
            call(output)

    def _backward_began(self) -> None:
        for call in self._calls.backward_began:
            call()

    def _backward_ended(self, gradients: Arrays, scale: float | None) -> None:
        for computed in self._calls.gradients_computed:
            computed()
        if self.clock.gradients_came(self._trained):
            self._events.step_ended()
        self._gradients = self._named(gradients, scale)
        for call in self._calls.backward_ended:
            call(self._gradients)

    def _named(self, gradients: Arrays, scale: float | None) -> PushedGradients:
        if unknown := [name for name in gradients if name not in self._model.parameters]:
            raise ModelError(f"backward_ended: '{unknown[0]}' is not a parameter of this model")
        names = [name for name in gradients if name in self._chosen]
        arrays: list[npt.NDArray[Any]] = [np.asarray(gradients[name]) for name in names]
        return PushedGradients(names, arrays, scale)

    def _update_began(self, gradients: Arrays | None) -> None:
        if self.clock.update_began(self._trained):
            self._events.step_ended()
        if gradients is not None:
            self._gradients = self._named(gradients, None)
        for call in (*self._calls.update_called, *self._calls.update_began):
            call(None)

    def _update_ended(self) -> None:
        for call in (*self._calls.update_returned, *self._calls.update_ended):
            call(None)
        self.clock.update_ended(self._trained)
        self._events.frames.seal()
        if self.clock.is_complete:
            self._events.update_completed()


def _parent(name: str) -> str:
    return name.rpartition(".")[0] or ROOT


def _modules(parameters: list[str]) -> list[str]:
    """Return the modules that names of parameters imply: `layers.0.weight` gives `layers` and `layers.0`."""
    above = (module for name in parameters for module in reversed(ancestors(name)[1:]))
    return list(dict.fromkeys((ROOT, *above)))
