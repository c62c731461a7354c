"""Gradients as backward leaves them, parameter by parameter: what one pass adds, and what has added up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from vario.backends.base import Events, Undo
from vario.backends.torch import releases
from vario.backends.torch.engines.base import Accumulator
from vario.backends.torch.loop import hooks
from vario.backends.torch.loop.fallback_hooks import SecondHooks
from vario.backends.torch.loop.subscriptions import Subscriptions
from vario.backends.torch.loop.training_threads import Turns
from vario.backends.torch.targets import Targets
from vario.core.clock import Clock
from vario.core.errors import ModelError

_LOCAL = "gradient_local"
_ACCUMULATED = "gradient_accumulated"
_NOWHERE_ADDED_UP = (
    "the ranks share the gradients of each micro-step by itself here, so what one rank's micro-steps add up to exists "
    "nowhere; 'gradient_local' has each of them"
)
_MOST_LAST = 8
"""Parameters that are known to be the last of a backward; loops with several losses have a few."""
_ELSEWHERE = "in this release of its runtime '{}' does not find what gradients add up in: {}. Please report it"


class Accumulation:
    """Follows every tensor that gradients accumulate into, and by that the end of each backward pass."""

    def __init__(
        self,
        targets: Targets,
        clock: Clock,
        calls: Subscriptions,
        turns: Turns,
        *,
        end_step: Callable[[], None],
        backward_ended: Callable[[], None],
    ) -> None:
        self._targets = targets
        self._engine = targets.engine
        self._clock = clock
        self._calls = calls
        self._turns = turns
        self._end_step = end_step
        self._tell_that_backward_ended = backward_ended
        self._undo = hooks.Undos()
        self._second_hooks = SecondHooks()
        self._unfollowed: dict[str, None] = {}
        self._backward = -1
        self._outermost_backward_is_followed = False
        self._is_under_way = False
        self.fired: dict[str, None] = {}
        """The parameters that this backward has reached, in order."""
        self._last_reached: set[str] = set()
        """The parameters that were the last to be reached by an earlier backward."""
        self.first_reached: Callable[[torch.Tensor], None] | None = None
        """Called with the first parameter that a backward reaches, once."""
        self.misses_accumulators = False
        """Whether the engine does not know where gradients add up."""

    def attach(self, events: Events) -> Undo:
        """Begin to follow; what is there is found by `look`."""
        self._events = events
        self._unfollowed = dict.fromkeys(self._targets.all_parameters)
        self._undo.add(self._second_hooks.forget)
        return self._undo

    def look(self) -> None:
        """Hook what gradients accumulate into by now: fine-tuning thaws on the way, FSDP makes twins as it gathers."""
        if not self._unfollowed:
            return
        try:
            found = list(self._engine.accumulators(self._unfollowed))
        except AttributeError as error:  # what a runtime keeps to itself has another name in another release
            found, self._unfollowed, self.misses_accumulators = [], {}, True
            for quantity in (_LOCAL, _ACCUMULATED):
                self._events.switch_off(quantity, ModelError(_ELSEWHERE.format(self._engine.name, error)))
        if not found:
            return
        self._undo.add(hooks.after_accumulations((one.tensor, self._accumulated(one)) for one in found))
        for accumulator in found:
            for name, _ in accumulator.parts:
                self._unfollowed.pop(name, None)
            if self._wants_local_gradients and self._chosen(accumulator):
                came = self._second_hooks.follow(accumulator.tensor, self._local_gradient_came(accumulator))
                self._undo.add(hooks.on_gradient(accumulator.tensor, came))

    @property
    def backward_failed(self) -> bool:
        """Whether a backward has begun and not ended; asked outside of any: it raised."""
        return self._is_under_way

    def drop_backward(self) -> None:
        """Forget the backward that raised."""
        self._is_under_way = False
        self.fired.clear()

    def forward_began(self) -> None:
        """A pass begins: which backward will be its outermost is not known yet."""
        self._outermost_backward_is_followed = False

    def forward_ended(self) -> None:
        """The graph is there, and with it tensors that an engine has made on the way."""
        self.look()
        self._second_hooks.forward_ended()

    def outermost_backward_began(self, micro_step: int, gradient: torch.Tensor) -> None:
        """Backward sets out from the model's output."""
        self._clock.backward_began(micro_step)
        # Reentrant checkpointing runs a backward of its own per segment; the one that starts at the model's
        # output is the outermost, and its end is the end.
        backward = hooks.current_backward()
        if backward != self._backward:
            self._backward = backward
            self._outermost_backward_is_followed = self._is_under_way = True
            hooks.at_end_of_backward(self._backward_ended)
            for call in self._calls.backward_began:
                call()

    def _backward_ended(self) -> None:
        self._outermost_backward_is_followed = self._is_under_way = False
        self._second_hooks.backward_ended()
        if self.fired and len(self._last_reached) < _MOST_LAST:
            self._last_reached.add(next(reversed(self.fired)))
        self._tell_that_backward_ended()

    def _accumulated(self, accumulator: Accumulator) -> Callable[[torch.Tensor], None]:
        """What to call when backward has added to a tensor."""
        if len(accumulator.parts) == 1 and accumulator.parts[0][1] is None:
            # Almost all there are, and there may be a hundred thousand: each holds no more than its name.
            return partial(self._whole_accumulated, accumulator.parts[0][0])
        numbers = [id(self._targets.all_parameters[name]) for name, _ in accumulator.parts]
        names = [name for name, _ in accumulator.parts]
        return partial(self._parts_accumulated, names, numbers, self._chosen(accumulator))

    def _whole_accumulated(self, name: str, tensor: torch.Tensor) -> None:
        chosen: list[tuple[str, slice | None]] = [(name, None)] if name in self._targets.parameters else []
        self._parts_accumulated((name,), (id(self._targets.all_parameters[name]),), chosen, tensor)

    def _parts_accumulated(
        self,
        names: Sequence[str],
        numbers: Sequence[int],
        chosen: Sequence[tuple[str, slice | None]],
        tensor: torch.Tensor,
    ) -> None:
        if releases.LOSES_HOOKS:
            self._second_hooks.accumulated(tensor)
        if not self._turns.takes_part():
            return
        if self._clock.gradients_came(numbers):
            self._end_step()
        if self.first_reached is not None:
            tell_first, self.first_reached = self.first_reached, None
            tell_first(tensor)
        for name in names:
            self.fired[name] = None
        if self._calls.gradients_computed and not self._last_reached.isdisjoint(names):
            for call in self._calls.gradients_computed:
                call()
        if self._calls.accumulated_gradient and chosen and self._engine.keeps_local_sum:
            gradient = self._engine.accumulated(tensor)
            if gradient is not None:
                # The generator's backward adds to a discriminator that was updated just before.
                self._events.frames.is_of_next_step = self._clock.has_updated(numbers[0])
                self._tell(self._calls.accumulated_gradient, chosen, gradient)
                self._events.frames.is_of_next_step = False
        if self._outermost_backward_is_followed:
            return
        backward = hooks.current_backward()
        if backward not in (self._backward, -1):
            self._backward = backward
            self._is_under_way = True
            hooks.at_end_of_backward(self._backward_ended)

    def _local_gradient_came(self, accumulator: Accumulator) -> Callable[[torch.Tensor], None]:
        numbers = [id(self._targets.all_parameters[name]) for name, _ in accumulator.parts]
        chosen = self._chosen(accumulator)

        def came(gradient: torch.Tensor) -> None:
            if not accumulator.is_internal and not hooks.is_accumulating(accumulator.tensor):
                return
            if not self._turns.takes_part():
                return
            if self._clock.gradients_came(numbers):
                self._end_step()
            try:
                self._engine.check_local(accumulator.tensor)
            except ModelError as error:
                self._events.frames.take_back(_LOCAL, list(self._targets.parameters))
                self._events.switch_off(_LOCAL, error)
                return
            self._tell(self._calls.local_gradient, chosen, gradient)
            if self._calls.accumulated_gradient and not self._engine.keeps_local_sum:
                self._only_one_adds_up(chosen, gradient)

        return came

    @property
    def _wants_local_gradients(self) -> bool:
        wanted = self._calls.accumulated_gradient and not self._engine.keeps_local_sum
        return bool(self._calls.local_gradient or wanted)

    def _only_one_adds_up(self, parts: Sequence[tuple[str, slice | None]], gradient: torch.Tensor) -> None:
        """Where ranks share each micro-step by itself, the sum of several exists nowhere, and one is its own sum."""
        if not self._clock.micro_step:
            self._tell(self._calls.accumulated_gradient, parts, gradient)
            return
        self._events.frames.take_back(_ACCUMULATED, list(self._targets.parameters))
        self._events.switch_off(_ACCUMULATED, ModelError(_NOWHERE_ADDED_UP))

    def _chosen(self, accumulator: Accumulator) -> list[tuple[str, slice | None]]:
        return [(name, part) for name, part in accumulator.parts if name in self._targets.parameters]

    def _tell(
        self,
        calls: Sequence[Callable[[str, torch.Tensor], None]],
        parts: Sequence[tuple[str, slice | None]],
        gradient: torch.Tensor,
    ) -> None:
        for name, part in parts:
            own = gradient
            if part is not None:
                own = gradient.detach().reshape(-1)[part].view(self._targets.shares[name].shape)
            for call in calls:
                call(name, own)
