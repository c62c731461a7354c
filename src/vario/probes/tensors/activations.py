"""Inputs and outputs of modules, and the gradients that flow through them."""

from __future__ import annotations

from typing import ClassVar

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.capabilities import ModuleTensors
from vario.probes import Needs, Recorder


class Activations:
    """Inputs and outputs of each module."""

    quantity: ClassVar[str] = "activation"
    every: ClassVar[int] = 10
    needs: ClassVar[Needs] = (ModuleTensors,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to module calls."""
        needed(backend, ModuleTensors).on_module_values(recorder.observer(self.quantity))


class ActivationGradients:
    """Gradients of the inputs and outputs of each module."""

    quantity: ClassVar[str] = "activation_gradient"
    every: ClassVar[int] = 10
    needs: ClassVar[Needs] = (ModuleTensors,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the gradients of module inputs and outputs."""
        tensors = needed(backend, ModuleTensors)
        tensors.on_module_gradients(recorder.observer(self.quantity, tensors.loss_scale))
