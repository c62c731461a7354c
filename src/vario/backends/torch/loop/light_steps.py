"""Steps of which only plain numbers are told.

Where steps are short, following one takes longer than the budget allows, even if no tensor of it is recorded. Most
loops do the same in each step: forward passes, a backward pass after some of them, always as many, and one update by
one optimizer. In a light step of such a loop, hooks only note that each of these came, and tell the loss, the gradients
and the optimizer. Anything else that happens ends the light step: the rest of it is followed like any other.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch

from vario.backends.protocols.events import Events, Inputs
from vario.backends.protocols.gradients import Gradients
from vario.backends.torch import releases
from vario.backends.torch.engines import optimizers
from vario.backends.torch.loop.accumulation import Accumulation
from vario.backends.torch.loop.subscriptions import Subscriptions
from vario.backends.torch.targets import Targets
from vario.core.clock import Clock

_device = attrgetter("device")

LEAST_REGULAR = 4
"""Steps in a row that did the same before the first light step."""


class LightSteps:
    """Knows whether a loop does the same in every step, and follows its light steps."""

    def __init__(
        self,
        targets: Targets,
        clock: Clock,
        calls: Subscriptions,
        accumulation: Accumulation,
        *,
        gradients: Callable[[], Gradients],
        scale: Callable[[], torch.Tensor | None],
    ) -> None:
        """`gradients()` returns those of the backward pass that has just ended, `scale()` the scale of losses."""
        self._scale = scale
        self._targets = targets
        self._clock = clock
        self._calls = calls
        self._accumulation = accumulation
        self._gradients = gradients
        self._events: Events | None = None
        self._first = next(iter(targets.all_parameters.values()))
        self._device = torch.device("meta")
        self._is_together = False
        """Whether all parameters are on this device, and it is one where light steps are possible."""
        self.is_on = False
        """Whether the step in progress is light."""
        self.is_regular = False
        """Whether the loop has done the same in its latest steps, so that the next may be light."""
        self.is_in_backward = False
        """Whether the backward pass of a light step is under way."""
        self.num_backwards = 0
        """Backward passes of each step, if the loop has done the same in its latest steps, however much that was; else
        0."""
        self._num_regular = self._num_alike = 0
        self._usual = 0
        """Backward passes of the latest step."""
        self._num_came = 0
        """Backward passes of the light step in progress so far."""
        self.first_reached: torch.Tensor | None = None
        """The parameter that its latest backward pass reached first."""
        self._last_seen: list[int] = []
        self._seen = [0, 0, 0]
        """Forward passes, backward passes and updates of the step in progress, if it is not light."""
        self._optimizer: Callable[[], torch.optim.Optimizer | None] = lambda: None
        self._has_closure = False
        self._numbers: frozenset[int] = frozenset()

    def attach(self, events: Events) -> None:
        """Start deciding, if gradients are plain tensors that backward leaves in the parameters."""
        is_plain = self._targets.engine.has_plain_gradients and not releases.LOSES_HOOKS
        if is_plain and not (self._calls.local_gradient or self._calls.accumulated_gradient):
            self._events = events

    # What happens in other steps

    def pass_came(self) -> None:
        """Note a forward pass."""
        self._seen[0] += 1

    def backward_came(self) -> None:
        """Note a backward pass, through whatever model."""
        self._seen[1] += 1

    def update_came(self, optimizer: torch.optim.Optimizer, has_closure: bool) -> None:
        """Note an update."""
        self._seen[2] += 1
        if has_closure != self._has_closure or optimizer is not self._optimizer():
            self._num_regular = -1
            self._optimizer, self._has_closure = weakref.ref(optimizer), has_closure

    def step_began(self) -> None:
        """Decide whether the step that begins is light."""
        if self._events is None:
            return
        if not self.is_on:
            num_passes, num_backwards, num_updates = seen = self._seen
            is_plain = min(seen) > 0 and not self._clock.manual and self._scale() is None
            is_plain = is_plain and self._is_on_one_device()
            is_alike = is_plain and num_updates == 1 and num_backwards <= num_passes
            is_new = num_backwards != self._usual and self._num_regular > 0
            self._num_regular = 0 if not is_alike else 1 if is_new else self._num_regular + 1
            self._num_alike = self._num_alike + 1 if is_plain and seen == self._last_seen else 0
            self.is_regular = self._num_regular >= LEAST_REGULAR
            is_repeating = self.is_regular or self._num_alike >= LEAST_REGULAR
            self.num_backwards = num_backwards if is_repeating else 0
            self._last_seen, self._seen, self._usual = seen, [0, 0, 0], num_backwards
        self._num_came = 0
        # With a closure, a step's passes are inside its update.
        self.is_on = self.is_regular and not self._has_closure and self._events.may_be_light

    def _is_on_one_device(self) -> bool:
        """Whether all parameters are on the host, or all on one CUDA device: a model may move after it is watched."""
        if self._first.device != self._device:
            self._device = self._first.device
            parameters = self._targets.all_parameters.values()
            is_known = self._device.type in ("cpu", "cuda")
            self._is_together = is_known and set(map(_device, parameters)) == {self._device}
        return self._is_together

    def leave(self) -> None:
        """Follow the rest of this step like any other."""
        if self.is_on:
            self.is_on = self.is_in_backward = self.is_regular = False
            self._num_regular = self._num_alike = self.num_backwards = 0
            self._accumulation.be_plain(False)

    # What happens in a light step: each returns whether that is all there is to do

    def takes_pass(self, root: str, inputs: Inputs) -> bool:
        """Take a forward pass."""
        if not self.is_on:
            return False
        if self._clock.has_update or self._clock.update_failed:
            self.leave()
            return False
        self._clock.forward_began()
        self._clock.pass_began(root)
        for call in self._calls.light_pass:
            call(root, inputs)
        return True

    def takes_backward(
        self, outputs: Sequence[Any], factors: Sequence[Any], inputs: Sequence[Any], accumulates: bool
    ) -> bool:
        """Take the start of a backward pass."""
        if not self.is_on:
            return False
        is_next = self._clock.has_pass and not self._clock.backward_seen and not self._clock.has_update
        is_usual = accumulates and not inputs and len(outputs) == 1 and self._scale() is None
        if not (is_next and is_usual and _are_numbers(outputs, factors)):
            self.leave()
            return False
        self._accumulation.be_plain(True)
        self.is_in_backward = True
        return True

    def ends_backward(self, has_failed: bool) -> bool:
        """Take the end of that backward pass; return whether it reached the model."""
        self.is_in_backward = False
        has_reached = self._accumulation.end_plain(has_failed)
        if has_failed or not has_reached:
            self.leave()
            return has_reached
        self._num_came += 1
        self._clock.gradients_came(())
        self.first_reached = self._accumulation.first_fired if self._usual > 1 else None
        if self._calls.light_gradients:
            gradients = self._gradients()
            for look in self._calls.light_gradients:
                look(gradients)
        self._accumulation.forget_fired()
        if self._events is None or self._events.frames.has_tensors:
            self.leave()  # the gradients ask for a closer look
        return True

    def takes_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> bool:
        """Take the start of an update."""
        if not self.is_on:
            return False
        clock = self._clock
        is_usual = optimizer is self._optimizer() and not optimizers.has_closure(args, kwargs)
        if not is_usual or not clock.backward_seen or clock.has_update:
            if self._targets.are_updated_by(optimizer):
                self.leave()
            return False
        self._numbers = frozenset(self._targets.engine.parameter_ids(optimizer))
        clock.update_began(self._numbers)
        for call in self._calls.light_update:
            call(optimizer)
        return True

    def ends_update(self, optimizer: torch.optim.Optimizer) -> bool:
        """Take the end of an update."""
        if not self.is_on or optimizer is not self._optimizer() or self._events is None:
            return False
        for call in self._calls.light_returned:
            call(optimizer)
        self._clock.update_ended(self._numbers)
        if not self._clock.is_complete:
            self.leave()  # an optimizer of the step before is missing
            return True
        if self._num_came != self._usual:
            self.leave()
        # Last: a subscriber may end the watching.
        self._events.update_completed()
        return True


def _are_numbers(outputs: Sequence[Any], factors: Sequence[Any]) -> bool:
    """Whether each is one number, on the host or the device of the parameters."""
    return all(
        tensor is None
        or (
            type(tensor) is torch.Tensor
            and tensor.numel() == 1
            and tensor.is_floating_point()
            and (tensor.is_cpu or tensor.is_cuda)
        )
        for tensor in (*outputs, *factors)
    )
