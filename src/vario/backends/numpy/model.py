"""A model that is trained in NumPy, and the events its loop reports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy.typing as npt

from vario.core.errors import ModelError

Arrays = Mapping[str, npt.NDArray[Any]]


class NumpyModel:
    """Named parameters, and the events of the loop that trains them. NumPy has no hooks, so the loop reports them::

        weights = {"hidden.weight": ..., "hidden.bias": ...}
        model = NumpyModel(weights)
        with vario.watch(model) as monitor:
            for batch in batches:
                model.forward_began(batch)
                loss, gradients = loss_and_gradients(weights, batch)
                model.backward_ended(gradients)
                model.update_began()
                for name, gradient in gradients.items():
                    weights[name] -= 0.1 * gradient
                model.update_ended()
                monitor.log(loss=loss)

    Parameters are looked up by name when they are needed, so they may be changed in place or replaced. Only the calls
    `backward_ended` and `update_ended` are required. If no Monitor watches the model, the calls do nothing.
    """

    def __init__(self, parameters: Arrays, frozen: Collection[str] = ()) -> None:
        """Wrap these parameters; those named in `frozen` are not trained."""
        if not parameters:
            raise ModelError("NumpyModel: no parameters, so there is nothing to train or watch")
        if unknown := [name for name in frozen if name not in parameters]:
            raise ModelError(f"NumpyModel: '{unknown[0]}' is listed as frozen but is not a parameter")
        self.parameters = parameters
        self.frozen = frozenset(frozen)
        self._listeners: Mapping[str, Callable[..., None]] = {}

    def forward_began(self, *inputs: Any) -> None:
        """Report that a training pass begins with these inputs; several before one update are micro-steps."""
        self._tell("forward_began", inputs)

    def forward_ended(self, output: Any = None) -> None:
        """Report the output of the pass."""
        self._tell("forward_ended", output)

    def backward_began(self) -> None:
        """Report that gradients are about to be computed."""
        self._tell("backward_began")

    def backward_ended(self, gradients: Arrays, scale: float | None = None) -> None:
        """Report the gradients of this step so far, by parameter, summed over micro-steps and not yet clipped.

        `scale`: what the loss, and so the gradients, are multiplied by.
        """
        self._tell("backward_ended", gradients, scale)

    def update_began(self, gradients: Arrays | None = None) -> None:
        """Report that the weights are about to change; pass the gradients if clipping or unscaling replaced them."""
        self._tell("update_began", gradients)

    def update_ended(self) -> None:
        """Report that all weights of this step have changed."""
        self._tell("update_ended")

    def follow(self, listeners: Mapping[str, Callable[..., None]]) -> None:
        """Call these listeners from now on, by event; with none, stop."""
        self._listeners = listeners

    @property
    def is_followed(self) -> bool:
        """Whether a Monitor watches it."""
        return bool(self._listeners)

    def _tell(self, event: str, *args: Any) -> None:
        listener = self._listeners.get(event)
        if listener is not None:
            listener(*args)
