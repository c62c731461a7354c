"""The gradients after a torch backward pass, looked up on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from vario.backends.protocols.gradients import Values
from vario.backends.torch.loop.gradient_order import GradientOrder
from vario.backends.torch.reduce.async_copy import fetch_later
from vario.backends.torch.reduce.norms import norm_of_all, norms_of_each
from vario.backends.torch.reduce.tensors import unseen
from vario.backends.torch.targets import NamedTensors, Targets
from vario.core.clock import Clock


class CompleteGradients:
    """Gradients of parameters that this step has not updated yet: accumulated, reduced, not clipped."""

    def __init__(
        self,
        targets: Targets,
        clock: Clock,
        order: Callable[[], GradientOrder],
        device: torch.device,
        loss_scale: Callable[[], torch.Tensor | None],
    ) -> None:
        """`order`: returns the chosen parameters, first those that this backward pass has reached."""
        self._targets = targets
        self._clock = clock
        self._order = order
        self._device = device
        self._loss_scale = loss_scale

    @property
    def scale(self) -> torch.Tensor | None:
        """What the loss of this step is multiplied by."""
        return self._loss_scale()

    def named(self, replicas: bool = False) -> NamedTensors:
        """Return names and gradients in the order in which backward reached them; `replicas`: recorded here or not."""
        order = self._order()
        if not self._clock.has_update:
            plain = self._targets.plain_gradients(replicas, order)
            return self._targets.gradients(order.names, replicas) if plain is None else plain
        parameters = self._targets.parameters
        names = [name for name in order.names if not self._clock.has_updated(id(parameters[name]))]
        return self._targets.gradients(names, replicas)

    def in_any_order(self, replicas: bool = False) -> NamedTensors:
        """Return the same, faster in simple cases."""
        plain = None if self._clock.has_update else self._targets.plain_gradients(replicas)
        return self.named(replicas) if plain is None else plain

    def norm(self) -> float | None:
        """Return the norm of all gradients, recorded or not, if they are on the host; None if they are on a device."""
        if self._device.type != "cpu":
            return None
        gradients = self.in_any_order(replicas=True)[1]
        return norm_of_all(gradients) if gradients else 0.0

    def norm_later(self) -> Callable[[], float] | None:
        """Start computing the norm of all gradients; on a device nothing waits but the result."""
        if (norm := self.norm()) is not None:
            return lambda: norm
        gradients = self.in_any_order(replicas=True)[1]
        is_plain = self._device.type == "cuda" and self._targets.engine.has_plain_gradients and gradients
        if not is_plain or torch.cuda.is_current_stream_capturing():
            return None
        with torch.no_grad(), unseen():
            fetch = fetch_later(torch.stack(torch._foreach_norm(list(gradients))).float().norm())
        return lambda: float(fetch())

    def norms(self, most: int) -> tuple[Sequence[str], Values] | None:
        """Return the norm of each gradient, zero where there is none; None if that takes more than reading them."""
        if self._device.type != "cpu" or self._clock.has_update or len(self._targets.parameters) > most:
            return None
        if not self._targets.engine.has_plain_gradients:
            return None
        # A parameter that was frozen keeps the gradient it had.
        found = [one.grad if one.requires_grad else None for one in self._targets.parameters.values()]
        norms = norms_of_each([gradient for gradient in found if gradient is not None])
        if norms is not None and len(norms) < len(found):
            is_there = np.array([gradient is not None for gradient in found])
            norms, there = np.zeros(len(found)), norms
            norms[is_there] = there
        return None if norms is None else (self._targets.parameter_names, norms)
