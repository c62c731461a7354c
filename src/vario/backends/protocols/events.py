"""The events of a training loop, as a backend reports them. For every step, in this order::

for micro_step in ...:                 pass_began           (the outermost module, gradients on)
    output = model(batch)                  module tensors       (each module: its inputs and outputs)
                                       pass_ended
    loss.backward()                    backward_began
                                           module tensors       (the gradients of those)
                                           local gradients      (each parameter's share of this pass)
                                       backward_ended       (gradients complete, not yet clipped)
clip(...)
optimizer.step()                       update_called
                                       update_began         (gradients as the optimizer gets them)
                                       update_returned
                                       update_ended         (new weights, new optimizer state)
monitor.log(loss=...)                  (still the same step; it ends when the next pass begins)

Where steps are short, telling all this takes longer than the budget allows. Then most steps are light: as long as the
loop does the same in every step, a backend tells only the loss, and only subscribers that pass `even_light=True` of
pass_began, backward_ended, update_returned, and update_called, update_began and update_ended: these three together,
before the update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from vario.backends.protocols.gradients import Gradients
from vario.backends.protocols.step_rows import StepRows

Undo = Callable[[], None]
"""Undoes an attach."""

Inputs = tuple[tuple[Any, ...], Mapping[str, Any]]
"""What a module is called with: positional and keyword arguments."""

TRAINING_LOOP = "training loop"
"""The part that is switched off if following the loop itself fails."""


class Events(Protocol):
    """What a backend reports to the Monitor that watches it."""

    @property
    def frames(self) -> StepRows:
        """The rows of the step in progress."""

    may_be_light: bool
    """Whether the step in progress needs none of what a light step leaves out."""

    def update_completed(self) -> None:
        """All updates of this step have happened; values logged from now on may be late."""

    def step_ended(self) -> None:
        """End the step: the training loop has started the next one."""

    def log(self, **values: Any) -> None:
        """Log a plain number of this step, as a Python number or a tensor."""

    def guarded(self, part: str, call: Callable[..., None]) -> Callable[..., None]:
        """Return the same call, which switches the part off instead of raising."""
        ...

    def switch_off(self, part: str, error: Exception) -> None:
        """Switch a failed part off and continue without it."""


class LoopCalls:
    """The calls to make at each event of a training loop, in the order of subscription."""

    def __init__(self) -> None:
        self.batch: list[Callable[[Any], None]] = []
        self.pass_began: list[Callable[[str, Inputs], None]] = []
        self.pass_ended: list[Callable[[Any], None]] = []
        self.backward_began: list[Callable[[], None]] = []
        self.gradients_computed: list[Callable[[], None]] = []
        self.backward_ended: list[Callable[[Gradients], None]] = []
        self.backward_failed: list[Callable[[], None]] = []
        self.update_called: list[Callable[[Any], None]] = []
        self.update_began: list[Callable[[Any], None]] = []
        self.update_returned: list[Callable[[Any], None]] = []
        self.update_ended: list[Callable[[Any], None]] = []
        self.light_pass: list[Callable[[str, Inputs], None]] = []
        self.light_gradients: list[Callable[[Gradients], None]] = []
        self.light_update: list[Callable[[Any], None]] = []
        self.light_returned: list[Callable[[Any], None]] = []


class LoopEvents:
    """How to subscribe to a training loop. A backend that cannot report an event never makes its calls."""

    def __init__(self, calls: LoopCalls) -> None:
        self._calls = calls

    def on_batch(self, call: Callable[[Any], None]) -> None:
        """Call `call` with the batches that the loop passes itself."""
        self._calls.batch.append(call)

    def batch_came(self, batch: Any) -> None:
        """Take a batch from the loop: nested tensors."""
        for call in self._calls.batch:
            call(batch)

    def on_pass_began(self, call: Callable[[str, Inputs], None], even_light: bool = False) -> None:
        """Call `call` with the name of an outermost module and its inputs, if known, when a training pass begins."""
        self._calls.pass_began.append(call)
        self._calls.light_pass += [call] * even_light

    def on_pass_ended(self, call: Callable[[Any], None]) -> None:
        """Call `call` with the output of the outermost module in a training pass."""
        self._calls.pass_ended.append(call)

    def on_backward_began(self, call: Callable[[], None]) -> None:
        """Call `call` when a backward pass starts from the model's output, before it reaches any parameter."""
        self._calls.backward_began.append(call)

    def on_gradients_computed(self, call: Callable[[], None]) -> None:
        """Call `call` when this rank has computed the last gradient of a backward pass, before it waits for others.

        Which gradient is the last is known from earlier passes, so not in the first; a later call replaces an earlier
        one.
        """
        self._calls.gradients_computed.append(call)

    def on_backward_ended(self, call: Callable[[Gradients], None], even_light: bool = False) -> None:
        """Call `call` with the gradients when they are complete and not yet clipped."""
        self._calls.backward_ended.append(call)
        self._calls.light_gradients += [call] * even_light

    def on_backward_failed(self, call: Callable[[], None]) -> None:
        """Call `call` when a backward pass is known to have raised: its forward passes belong to no step."""
        self._calls.backward_failed.append(call)

    def on_update_called(self, call: Callable[[Any], None], even_light: bool = False) -> None:
        """Call `call` with the optimizer before it does anything, also before a closure that it runs."""
        self._calls.update_called.append(call)
        self._calls.light_update += [call] * even_light

    def on_update_began(self, call: Callable[[Any], None], even_light: bool = False) -> None:
        """Call `call` with the optimizer when it gets its gradients."""
        self._calls.update_began.append(call)
        self._calls.light_update += [call] * even_light

    def on_update_returned(self, call: Callable[[Any], None], even_light: bool = False) -> None:
        """Call `call` with the optimizer when it is done, before vario reads what it did."""
        self._calls.update_returned.append(call)
        self._calls.light_returned += [call] * even_light

    def on_update_ended(self, call: Callable[[Any], None], even_light: bool = False) -> None:
        """Call `call` with the optimizer when it has updated the weights; None if the loop did so itself."""
        self._calls.update_ended.append(call)
        self._calls.light_update += [call] * even_light
