"""Inputs and outputs of modules, and the gradients that flow through them."""

from __future__ import annotations

from typing import ClassVar

from vario.backends.base import Watched
from vario.probes import Recorder


class Activations:
    """Inputs and outputs of each module."""

    quantity: ClassVar[str] = "activation"
    every: ClassVar[int] = 10

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to module calls."""
        watched.on_module_values(recorder.observer(self.quantity))


class ActivationGradients:
    """Gradients of the inputs and outputs of each module."""

    quantity: ClassVar[str] = "activation_gradient"
    every: ClassVar[int] = 10

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to the gradients of what modules take and return."""
        watched.on_module_gradients(recorder.observer(self.quantity, watched.loss_scale))
