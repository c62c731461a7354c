"""Who is told of what a training loop does: all that probes may ask for before it is followed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from vario.backends.base import Inputs, Observer
from vario.backends.losses import BackwardLoss
from vario.backends.torch.modules.module_calls import Call, ModuleCalls


class Subscriptions:
    """The calls to make at each event of a training loop, in the order they were asked for."""

    def __init__(self, is_training_pass: Callable[[], bool]) -> None:
        self.module_values: Observer | None = None
        self.module_gradients: Observer | None = None
        self.separates_gradients = False
        self.module_calls = ModuleCalls(is_training_pass)
        self.pass_began: list[Callable[[str, Inputs], None]] = []
        self.pass_ended: list[Callable[[Any], None]] = []
        self.reported: list[Callable[[Mapping[str, Any]], None]] = []
        self.batch: list[Callable[[Any], None]] = []
        self.local_gradient: list[Callable[[str, torch.Tensor], None]] = []
        self.accumulated_gradient: list[Callable[[str, torch.Tensor], None]] = []
        self.backward_loss: list[Callable[[BackwardLoss], None]] = []
        self.backward_began: list[Callable[[], None]] = []
        self.gradients_computed: list[Callable[[], None]] = []
        self.backward_ended: list[Callable[[], None]] = []
        self.backward_failed: list[Callable[[], None]] = []
        self.update_called: list[Callable[[Any], None]] = []
        self.update_began: list[Callable[[Any], None]] = []
        self.update_returned: list[Callable[[Any], None]] = []
        self.update_ended: list[Callable[[Any], None]] = []


class Subscribing:
    """The way to subscribe, as `vario.backends.base.Watched` promises it."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._calls = subscriptions

    def on_module_values(self, observer: Observer) -> None:
        """Hand module inputs and outputs to this observer."""
        self._calls.module_values = observer

    def on_module_gradients(self, observer: Observer, through_modules: bool = False) -> None:
        """Hand the gradients of module inputs and outputs to this observer."""
        self._calls.module_gradients = observer
        self._calls.separates_gradients = through_modules

    def on_modules_called(self, names: Sequence[str], call: Call) -> None:
        """Call with (name, positional inputs) when one of these modules is called in a pass that trains."""
        self._calls.module_calls.follow(names, call)

    def on_pass_began(self, call: Callable[[str, Inputs], None]) -> None:
        """Call with the name of an outermost module and its inputs, as far as they are known, in a pass that trains."""
        self._calls.pass_began.append(call)

    def on_pass_ended(self, call: Callable[[Any], None]) -> None:
        """Call with what the outermost module returned in a pass that trains."""
        self._calls.pass_ended.append(call)

    def on_reported(self, call: Callable[[Mapping[str, Any]], None]) -> None:
        """Call with what a trainer of another package reports of this model."""
        self._calls.reported.append(call)

    def on_batch(self, call: Callable[[Any], None]) -> None:
        """Call with the batches that the loop shows by itself."""
        self._calls.batch.append(call)

    def batch_came(self, batch: Any) -> None:
        """The loop shows a batch."""
        for call in self._calls.batch:
            call(batch)

    def on_local_gradients(self, call: Callable[[str, torch.Tensor], None]) -> None:
        """Call with (name, gradient) for what one backward pass adds to each parameter's gradient."""
        self._calls.local_gradient.append(call)

    def on_accumulated_gradients(self, call: Callable[[str, torch.Tensor], None]) -> None:
        """Call with (name, gradient) when this rank's backward has added to a gradient, before ranks share it."""
        self._calls.accumulated_gradient.append(call)

    def on_backward_loss(self, call: Callable[[BackwardLoss], None]) -> None:
        """Call with the number that backward was called on, when it reaches the first parameter."""
        self._calls.backward_loss.append(call)

    def on_backward_began(self, call: Callable[[], None]) -> None:
        """Call when a backward sets out from the model's output, before it reaches any parameter."""
        self._calls.backward_began.append(call)

    def on_gradients_computed(self, call: Callable[[], None]) -> None:
        """Call when this rank has computed the last gradient of a backward, before it waits for others."""
        self._calls.gradients_computed.append(call)

    def on_backward_ended(self, call: Callable[[], None]) -> None:
        """Call when gradients are complete and not yet clipped."""
        self._calls.backward_ended.append(call)

    def on_backward_failed(self, call: Callable[[], None]) -> None:
        """Call when a backward is known to have raised: its forward passes are of no step."""
        self._calls.backward_failed.append(call)

    def on_update_called(self, call: Callable[[Any], None]) -> None:
        """Call with the optimizer before it does anything, also before a closure that it runs."""
        self._calls.update_called.append(call)

    def on_update_began(self, call: Callable[[Any], None]) -> None:
        """Call with the optimizer when it gets its gradients."""
        self._calls.update_began.append(call)

    def on_update_returned(self, call: Callable[[Any], None]) -> None:
        """Call with the optimizer when it is done, before anybody looks at what it did."""
        self._calls.update_returned.append(call)

    def on_update_ended(self, call: Callable[[Any], None]) -> None:
        """Call with the optimizer when it has updated the weights."""
        self._calls.update_ended.append(call)
