"""Gradients of single parameters during backward: what one pass adds, and what has accumulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from vario.backends.protocols.events import Events, Undo
from vario.backends.torch import releases
from vario.backends.torch.engines.base import Accumulator
from vario.backends.torch.loop import hooks
from vario.backends.torch.loop.fallback_hooks import SecondHooks
from vario.backends.torch.loop.gradient_order import GradientOrder
from vario.backends.torch.loop.shared_hooks import SharedHooks
from vario.backends.torch.loop.subscriptions import Subscriptions
from vario.backends.torch.loop.training_threads import Turns
from vario.backends.torch.targets import Targets
from vario.core.clock import Clock
from vario.core.errors import ModelError
from vario.core.process import last_guard

_LOCAL = "gradient_local"
_ACCUMULATED = "gradient_accumulated"
_NOWHERE_ADDED_UP = (
    "the ranks reduce the gradients of each micro-step separately here, so the sum of one rank's micro-steps exists "
    "nowhere; record 'gradient_local' for each micro-step"
)
_MOST_LAST = 8
"""The most parameters remembered as the last of a backward pass; loops with several losses have a few."""
_ELSEWHERE = "in this release of its runtime '{}' does not find the accumulated gradients: {}. Please report it"


class Accumulation:
    """Follows every tensor that accumulates gradients, and so detects the end of each backward pass."""

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
        self._updated_before: frozenset[int] = frozenset()
        """What the step had updated before this backward pass."""
        self._is_plain = False
        """Whether to keep only the names of the parameters that this backward pass has yet to reach."""
        self._fired: list[torch.Tensor | str] = []
        """What this backward pass has reached, in order: whole parameters, and names of those inside other tensors."""
        self._order = GradientOrder(targets.parameters, targets.engine.names)
        self._last_reached: set[str] = set()
        """The parameters that an earlier backward pass reached last."""
        self.first_reached: Callable[[torch.Tensor], None] | None = None
        """Called with the first parameter that a backward pass reaches, once."""
        self.misses_accumulators = False
        """Whether the engine does not know where gradients accumulate."""

    def attach(self, events: Events) -> Undo:
        """Start following; `look` finds the tensors."""
        self._events = events
        self._unfollowed = dict.fromkeys(self._targets.all_parameters)
        self._undo.add(self._second_hooks.forget)
        self._shared = SharedHooks(self._whole_accumulated)
        self._undo.add(self._shared.remove)
        return self._undo

    def look(self) -> None:
        """Hook the tensors that accumulate gradients now: fine-tuning unfreezes some, FSDP creates copies."""
        if not self._unfollowed:
            return
        if self._look_at_parameters():
            return
        try:
            found = list(self._engine.accumulators(self._unfollowed))
        except AttributeError as error:  # private names of a runtime change between releases
            found, self._unfollowed, self.misses_accumulators = [], {}, True
            for quantity in (_LOCAL, _ACCUMULATED):
                self._events.switch_off(quantity, ModelError(_ELSEWHERE.format(self._engine.name, error)))
        for accumulator in found:
            self._follow(accumulator)

    def _look_at_parameters(self) -> bool:
        """Hook all parameters at once, if they accumulate gradients themselves and nothing else is needed of each.

        There may be a hundred thousand, so nothing is created per parameter.
        """
        if not self._engine.has_plain_gradients or self._wants_local_gradients:
            return False
        parameters = self._targets.all_parameters
        found = [parameter for name in self._unfollowed if (parameter := parameters[name]).requires_grad]
        if not set(map(type, found)) <= {torch.nn.Parameter}:
            return False
        if found:
            self._shared.add(found)
            self._unfollowed = {name: None for name in self._unfollowed if not parameters[name].requires_grad}
        return True

    def _follow(self, accumulator: Accumulator) -> None:
        names = [name for name, _ in accumulator.parts]
        for name in names:
            self._unfollowed.pop(name, None)
        numbers = [id(self._targets.all_parameters[name]) for name in names]
        chosen = self._chosen(accumulator)
        call = partial(self._parts_accumulated, names, numbers, chosen)
        self._undo.add(hooks.after_accumulation(accumulator.tensor, call))
        if self._wants_local_gradients and chosen:
            came = self._second_hooks.follow(accumulator.tensor, self._local_gradient_came(accumulator))
            self._undo.add(hooks.on_gradient(accumulator.tensor, came))

    @property
    def has_fired(self) -> bool:
        """Whether this backward pass has reached any parameter."""
        return bool(self._fired)

    @property
    def first_fired(self) -> torch.Tensor | None:
        """The parameter that this backward pass reached first, if it is a tensor of its own."""
        first = self._fired[0] if self._fired else None
        return first if isinstance(first, torch.Tensor) else None

    def order(self) -> GradientOrder:
        """Return the order of the chosen parameters: first those that this backward pass has reached."""
        self._order.see(self._fired)
        return self._order

    def forget_fired(self) -> None:
        """Start over: report only what is reached from now on."""
        self._fired.clear()

    def be_plain(self, is_plain: bool) -> None:
        """Keep only the order of the parameters that this backward pass has yet to reach, or do everything."""
        self._is_plain = is_plain
        self._shared.run_meanwhile(self._fired.append if is_plain else None)

    def end_plain(self, has_failed: bool) -> bool:
        """End a backward pass of which nothing but the order was kept; return whether it reached any parameter."""
        self.be_plain(False)
        self._is_under_way = has_failed
        return bool(self._fired)

    @property
    def backward_failed(self) -> bool:
        """Whether a backward pass has begun and not ended; outside of any this means it raised."""
        return self._is_under_way

    def drop_backward(self) -> None:
        """Forget a backward pass that raised."""
        self._is_under_way = False
        self.be_plain(False)
        self._fired.clear()

    def forward_began(self) -> None:
        """Start a pass: which backward will be its outermost is not known yet."""
        self._outermost_backward_is_followed = False
        self.be_plain(False)

    def update_began(self) -> None:
        """Note that an optimizer updates, maybe in the middle of a backward pass."""
        self.be_plain(False)

    def forward_ended(self) -> None:
        """Look again: the graph now exists, and with it tensors that an engine has created."""
        self.look()
        self._second_hooks.forward_ended()

    def outermost_backward_began(self, micro_step: int, gradient: torch.Tensor) -> None:
        """Note that backward starts from the model's output."""
        self._clock.backward_began(micro_step)
        # Reentrant checkpointing runs a nested backward per segment; the one that starts at the model's output is the
        # outermost, and its end counts.
        backward = hooks.current_backward()
        if backward != self._backward:
            self._backward = backward
            self.be_plain(False)
            self._outermost_backward_is_followed = self._is_under_way = True
            self._updated_before = self._clock.updated
            hooks.at_end_of_backward(self._backward_ended)
            for call in self._calls.backward_began:
                call()

    def _backward_ended(self) -> None:
        self._outermost_backward_is_followed = self._is_under_way = False
        self.be_plain(False)
        self._second_hooks.backward_ended()
        if self._fired and len(self._last_reached) < _MOST_LAST:
            self._keep_last(self._fired[-1])
        self._tell_that_backward_ended()

    def _keep_last(self, last: torch.Tensor | str) -> None:
        if isinstance(last, str):
            self._last_reached.add(last)
        else:
            self._last_reached.add(self._engine.names[id(last)])
            self._shared.separate(last)

    def _whole_accumulated(self, tensor: torch.Tensor) -> None:
        """Take a parameter to whose gradient backward has added."""
        try:
            number = id(tensor)
            name = self._engine.names[number]
            chosen: list[tuple[str, slice | None]] = [(name, None)] if name in self._targets.parameters else []
            self._parts_accumulated((name,), (number,), chosen, tensor)
        except Exception as error:  # noqa: BLE001 - the failure policy
            last_guard.failed(error)

    def _parts_accumulated(
        self,
        names: Sequence[str],
        numbers: Sequence[int],
        chosen: Sequence[tuple[str, slice | None]],
        tensor: torch.Tensor,
    ) -> None:
        """Take a tensor to which backward has added the gradients of all parameters inside it."""
        if self._is_plain:
            self._reached(names)
            return
        if releases.LOSES_HOOKS:
            self._second_hooks.accumulated(tensor)
        if not self._turns.takes_part():
            return
        # A hook may update a parameter as soon as its gradient is there: what this pass has updated is of this step.
        is_own = self._outermost_backward_is_followed and self._updated_before.isdisjoint(numbers)
        if self._clock.gradients_came(numbers) and not is_own:
            self._end_step()
        if self.first_reached is not None:
            tell_first, self.first_reached = self.first_reached, None
            tell_first(tensor)
        self._reached(names)
        if self._calls.accumulated_gradient and chosen and self._engine.keeps_local_sum:
            gradient = self._engine.accumulated(tensor)
            if gradient is not None:
                # The generator's backward adds to a discriminator that was updated just before.
                self._events.frames.is_of_next_step = self._clock.has_updated(numbers[0])
                self._tell(self._calls.accumulated_gradient, chosen, gradient)
                self._events.frames.is_of_next_step = False
        if self._outermost_backward_is_followed:
            # Nothing can happen at the other parameters of this pass that has not happened at this one.
            self.be_plain(not (self._calls.accumulated_gradient or self._clock.has_update or releases.LOSES_HOOKS))
            return
        backward = hooks.current_backward()
        if backward not in (self._backward, -1):
            self._backward = backward
            self._is_under_way = True
            hooks.at_end_of_backward(self._backward_ended)

    def _reached(self, names: Sequence[str]) -> None:
        self._fired += names
        if self._calls.gradients_computed and not self._last_reached.isdisjoint(names):
            for call in self._calls.gradients_computed:
                call()

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
        """Record a single micro-step as its own sum: if ranks reduce each one separately, no other sum exists."""
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
