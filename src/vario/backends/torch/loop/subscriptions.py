"""The subscribers to a torch training loop: everything probes may ask for before it is followed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import torch

from vario.backends.protocols.backend import Backend
from vario.backends.protocols.events import LoopCalls
from vario.backends.protocols.loss_graphs import LossGraph
from vario.backends.protocols.losses import BackwardLoss, Compared
from vario.backends.protocols.observing import Observer
from vario.backends.torch.modules.module_calls import ModuleCalls

NumberWithRows = Callable[[torch.Tensor, torch.Tensor | None], Callable[[], float] | None]


class Subscriptions(LoopCalls):
    """The calls to make at each event of a torch training loop, in the order of subscription."""

    def __init__(self, is_training_pass: Callable[[], bool]) -> None:
        super().__init__()
        self.module_values: Observer | None = None
        self.module_gradients: Observer | None = None
        self.separates_gradients = False
        """Whether an input's gradient is only what its module adds, not the tensor's gradient from all its users."""
        self.module_calls = ModuleCalls(is_training_pass)
        self.timed: list[Callable[[str, float, float], None]] = []
        self.clipped: list[tuple[Callable[[Callable[[], float], float], None], Callable[[], bool]]] = []
        self.workers: list[Callable[[int], None]] = []
        self.reported: list[Callable[[Mapping[str, Any]], None]] = []
        self.local_gradient: list[Callable[[str, torch.Tensor], None]] = []
        self.accumulated_gradient: list[Callable[[str, torch.Tensor], None]] = []
        self.backward_loss: list[Callable[[BackwardLoss], None]] = []
        self.may_sample_targets: Callable[[], bool] = lambda: False
        """Whether to look for what the loss of a backward pass compares with."""
        self.targets_came: Callable[[Compared], None] = lambda compared: None
        self.may_read_graph: Callable[[], bool] = lambda: False
        """Whether to read what the loss of a backward pass was computed by."""
        self.graph_came: Callable[[LossGraph], None] = lambda graph: None
        self.number_with_rows: NumberWithRows = lambda number, factor: None
        """Fetches a number on a device, times another, with the rows of the step; None if that takes a copy."""

    def tell_of_loss(self, loss: BackwardLoss) -> None:
        """Pass on the number that backward was called on."""
        for call in self.backward_loss:
            call(loss)

    def tell_of_other_pass(self, began: float | None) -> None:
        """Pass on that a pass without gradients ends; None if this one has them."""
        if began is not None:
            for call in self.timed:
                call("evaluation", began, perf_counter())

    def tell_what_was_reported(self, numbers: Mapping[str, Any]) -> None:
        """Pass on what a trainer of another package reports."""
        for call in self.reported:
            call(numbers)


class Subscribing(Backend):
    """How to subscribe to what torch shows beyond the events of every training loop."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        super().__init__(subscriptions)
        self._calls: Subscriptions = subscriptions

    def on_module_values(self, observer: Observer) -> None:
        """Pass module inputs and outputs to this observer."""
        self._calls.module_values = observer

    def on_module_gradients(self, observer: Observer) -> None:
        """Pass the gradients of module inputs and outputs to this observer."""
        self._calls.module_gradients = observer

    def on_reported(self, call: Callable[[Mapping[str, Any]], None]) -> None:
        """Call `call` with what a trainer of another package reports for this model."""
        self._calls.reported.append(call)

    def on_local_gradients(self, call: Callable[[str, torch.Tensor], None]) -> None:
        """Call `call` with (name, gradient) for what one backward pass adds to each parameter's gradient."""
        self._calls.local_gradient.append(call)

    def on_accumulated_gradients(self, call: Callable[[str, torch.Tensor], None]) -> None:
        """Call `call` with (name, gradient) when this rank's backward added to a gradient, before ranks reduce it."""
        self._calls.accumulated_gradient.append(call)

    def on_backward_loss(self, call: Callable[[BackwardLoss], None]) -> None:
        """Call `call` with the number that backward was called on, when it reaches the first parameter."""
        self._calls.backward_loss.append(call)

    def sample_targets(self, may_look: Callable[[], bool], call: Callable[[Compared], None]) -> None:
        """Call `call` with what a loss compares with, for backward passes at whose start `may_look()` is true."""
        self._calls.may_sample_targets, self._calls.targets_came = may_look, call

    def read_loss_graphs(self, may_read: Callable[[], bool], call: Callable[[LossGraph], None]) -> None:
        """Call `call` with the graph of each loss at the start of whose backward pass `may_read()` is true."""
        self._calls.may_read_graph, self._calls.graph_came = may_read, call
