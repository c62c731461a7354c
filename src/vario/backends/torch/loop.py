"""A torch training loop, followed: which step and pass it is, when gradients are complete and updates happen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from vario.backends.base import Events, Observer
from vario.backends.torch import discovery, hooks, operators
from vario.backends.torch.activations import ModuleTensors
from vario.backends.torch.calls import Call, ModuleCalls
from vario.backends.torch.engines import optimizers
from vario.backends.torch.engines.base import Accumulator
from vario.backends.torch.scaling import LossScaling
from vario.backends.torch.targets import Targets
from vario.backends.torch.tensors import leaves
from vario.errors import ModelError
from vario.steps import Clock

_LOCAL = "gradient_local"
_ACCUMULATED = "gradient_accumulated"
_NOWHERE_ADDED_UP = (
    "the ranks share the gradients of each micro-step by itself here, so what one rank's micro-steps add up to exists "
    "nowhere; 'gradient_local' has each of them"
)
_ELSEWHERE = "in this release of its runtime '{}' does not find what gradients add up in: {}. Please report it"


class TrainingLoop:
    """Turns what torch and an engine do into the events that probes subscribe to."""

    def __init__(self, targets: Targets, scaler: Any) -> None:
        self.clock = Clock()
        self.targets = targets
        self.engine = targets.engine
        self.clock.calls_are_passes = self.engine.calls_are_passes
        self._given_optimizers = self.engine.torch_optimizers()
        for optimizer in self._given_optimizers:
            self.targets.check_optimizer(optimizer)
            self.clock.expect(self.engine.parameter_ids(optimizer))
        self._expects_optimizers = bool(self._given_optimizers)
        self._scaling = LossScaling(scaler, self._after_scaler_step)
        self._undo = hooks.Undos()
        self._module_values: Observer | None = None
        self._module_gradients: Observer | None = None
        self._separates_gradients = False
        self._module_tensors: ModuleTensors | None = None
        self._module_calls = ModuleCalls(self._is_training_pass)
        self._pass_trains: bool | None = None
        self._pass = 0
        self._local_gradient: list[Callable[[str, torch.Tensor], None]] = []
        self._accumulated_gradient: list[Callable[[str, torch.Tensor], None]] = []
        self._backward_ended_calls: list[Callable[[], None]] = []
        self._update_called_calls: list[Callable[[Any], None]] = []
        self._update_began_calls: list[Callable[[Any], None]] = []
        self._update_ended_calls: list[Callable[[Any], None]] = []
        self._was_in_training_mode = False
        self._unfollowed: dict[str, None] = {}
        self._misses_accumulators = False
        self._fired: dict[str, None] = {}
        self._backward = -1
        self._outermost_backward_is_followed = False
        self._updated_since_scaler_step = False
        self._skipped = -1, torch.zeros((), device="cpu")

    # Attaching

    def attach(self, events: Events) -> None:
        """Start following the training loop."""
        self._events = events
        self._undo.add(self.targets.claim())
        operators.define()
        self._undo.add(self._scaling.undo)
        self._scaling.attach()
        if self._module_values is not None or self._module_gradients is not None:
            self._module_tensors = ModuleTensors(
                self._module_values, self._module_gradients, self.clock, self._separates_gradients
            )
            self._undo.add(self._module_tensors.attach(self.targets.modules))
        self._undo.add(self._module_calls.attach(self.targets.all_modules))
        # Last, so that its hooks run before those on the root's own inputs: the pass begins with them.
        for name, root in self.targets.roots.items():
            self._follow_root(name, root)
        self._unfollowed = dict.fromkeys(self.targets.all_parameters)
        self._undo.add(self.engine.attach(self))
        self.look_for_accumulators()
        self._undo.add(hooks.around_updates(self._update_began, self._update_ended))

    def look_for_accumulators(self) -> None:
        """Hook what gradients accumulate into by now: fine-tuning thaws on the way, FSDP makes twins as it gathers."""
        if not self._unfollowed:
            return
        try:
            found = list(self.engine.accumulators(self._unfollowed))
        except AttributeError as error:  # what a runtime keeps to itself has another name in another release
            found, self._unfollowed, self._misses_accumulators = [], {}, True
            for quantity in (_LOCAL, _ACCUMULATED):
                self._events.switch_off(quantity, ModelError(_ELSEWHERE.format(self.engine.name, error)))
        for accumulator in found:
            for name, _ in accumulator.parts:
                self._unfollowed.pop(name, None)
            self._undo.add(hooks.after_accumulation(accumulator.tensor, self._accumulated(accumulator)))
            if self._wants_local_gradients and any(name in self.targets.parameters for name, _ in accumulator.parts):
                self._undo.add(hooks.on_gradient(accumulator.tensor, self._local_gradient_came(accumulator)))

    def _follow_root(self, name: str, root: torch.nn.Module) -> None:
        slot = operators.new_beginning(partial(self._forward_began, name))
        self._undo.add(lambda: operators.free_slot(slot))

        def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if torch.compiler.is_compiling():
                torch.ops.vario.begin_forward(slot, torch.is_grad_enabled(), module.training)
            else:
                self._forward_began(name, torch.is_grad_enabled(), module.training)

        def after(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if not torch.compiler.is_compiling():
                # torch calls this one also when forward raised, without an output.
                if output is None and self._pass_trains and sys.exc_info()[0] is not None:
                    self.clock.pass_failed(name)
                    self._events.forward_failed()
                self._forward_ended(output)

        self._undo.add(hooks.before_forward(root, before))
        self._undo.add(hooks.after_forward(root, after, even_if_it_raised=True))

    def detach(self) -> None:
        """Leave the model and the optimizer exactly as they were found."""
        self._undo()

    def on_module_values(self, observer: Observer) -> None:
        """Hand module inputs and outputs to this observer."""
        self._module_values = observer

    def on_module_gradients(self, observer: Observer, through_modules: bool = False) -> None:
        """Hand the gradients of module inputs and outputs to this observer."""
        self._module_gradients = observer
        self._separates_gradients = through_modules

    def on_modules_called(self, names: Sequence[str], call: Call) -> None:
        """Call with (name, positional inputs) when one of these modules is called in a pass that trains."""
        self._module_calls.follow(names, call)

    def on_local_gradients(self, call: Callable[[str, torch.Tensor], None]) -> None:
        """Call with (name, gradient) for what one backward pass adds to each parameter's gradient."""
        self._local_gradient.append(call)

    def on_accumulated_gradients(self, call: Callable[[str, torch.Tensor], None]) -> None:
        """Call with (name, gradient) when this rank's backward has added to a gradient, before ranks share it."""
        self._accumulated_gradient.append(call)

    def on_backward_ended(self, call: Callable[[], None]) -> None:
        """Call when gradients are complete and not yet clipped."""
        self._backward_ended_calls.append(call)

    def on_update_called(self, call: Callable[[Any], None]) -> None:
        """Call with the optimizer before it does anything, also before a closure that it runs."""
        self._update_called_calls.append(call)

    def on_update_began(self, call: Callable[[Any], None]) -> None:
        """Call with the optimizer when it gets its gradients."""
        self._update_began_calls.append(call)

    def on_update_ended(self, call: Callable[[Any], None]) -> None:
        """Call with the optimizer when it has updated the weights."""
        self._update_ended_calls.append(call)

    # The training loop's events

    def _forward_began(self, root: str, with_gradients: bool, is_training: bool) -> None:
        if hooks.current_backward() != -1:
            return  # a checkpoint around the whole model recomputes it
        # An evaluation may forget to switch gradients off; a model trained in evaluation mode is never in the other.
        self._was_in_training_mode = self._was_in_training_mode or is_training
        with_gradients = with_gradients and (is_training or not self._was_in_training_mode)
        self._pass_trains = with_gradients
        if self._module_tensors is not None:
            self._module_tensors.forward_began(with_gradients)
        if not with_gradients:
            return
        self._scaling.forward_began()
        if not self._expects_optimizers:
            self._expects_optimizers = True
            for optimizer in discovery.live_optimizers():
                if self.targets.are_updated_by(optimizer):
                    self.clock.expect(self.engine.parameter_ids(optimizer))
        self.look_for_accumulators()
        self._outermost_backward_is_followed = False
        if self.clock.forward_began():
            self._end_step()
        self._pass = self.clock.pass_began(root)
        self._events.forward_began()

    def pass_began(self) -> None:
        """A trainer that does not call the outermost module begins a pass that trains."""
        self._forward_began(next(iter(self.targets.roots)), True, True)

    def pass_ended(self) -> None:
        """That pass is done: what runs now, such as a validation, is no part of it."""
        self._forward_ended(None)

    def _is_training_pass(self) -> bool:
        # Reentrant checkpointing runs its first forward without gradients: what counts is how the root was called.
        return torch.is_grad_enabled() if self._pass_trains is None else self._pass_trains

    def _forward_ended(self, output: Any) -> None:
        if self._pass_trains:
            self.look_for_accumulators()
        self._pass_trains = None
        if self._module_tensors is not None:
            self._module_tensors.forward_ended()
        if torch.is_grad_enabled() and hooks.current_backward() == -1:
            try:
                for _, tensor in leaves(output, ""):
                    if tensor.grad_fn is not None:
                        tensor.register_hook(partial(self._outermost_backward_began, self._pass))
            except Exception as error:  # noqa: BLE001 - the failure policy: a container may raise anything when opened
                self._events.switch_off("model output", error)

    def _outermost_backward_began(self, micro_step: int, gradient: torch.Tensor) -> None:
        self.clock.backward_began(micro_step)
        # Reentrant checkpointing runs a backward of its own per segment; the one that starts at the model's
        # output is the outermost, and its end is the end.
        backward = hooks.current_backward()
        if backward != self._backward:
            self._backward = backward
            self._outermost_backward_is_followed = True
            hooks.at_end_of_backward(self._backward_ended)

    def _accumulated(self, accumulator: Accumulator) -> Callable[[torch.Tensor], None]:
        numbers = [id(self.targets.all_parameters[name]) for name, _ in accumulator.parts]
        chosen = self._chosen(accumulator)

        def accumulated(tensor: torch.Tensor) -> None:
            if self.clock.gradients_came(numbers):
                self._end_step()
            for name, _ in accumulator.parts:
                self._fired[name] = None
            if self._accumulated_gradient and chosen and self.engine.keeps_local_sum:
                gradient = self.engine.accumulated(tensor)
                if gradient is not None:
                    self._tell(self._accumulated_gradient, chosen, gradient)
            if self._outermost_backward_is_followed:
                return
            backward = hooks.current_backward()
            if backward not in (self._backward, -1):
                self._backward = backward
                hooks.at_end_of_backward(self._backward_ended)

        return accumulated

    def _local_gradient_came(self, accumulator: Accumulator) -> Callable[[torch.Tensor], None]:
        numbers = [id(self.targets.all_parameters[name]) for name, _ in accumulator.parts]
        chosen = self._chosen(accumulator)

        def came(gradient: torch.Tensor) -> None:
            if not accumulator.is_internal and not hooks.is_accumulating(accumulator.tensor):
                return
            if self.clock.gradients_came(numbers):
                self._end_step()
            try:
                self.engine.check_local(accumulator.tensor)
            except ModelError as error:
                self._events.take_back(_LOCAL, list(self.targets.parameters))
                self._events.switch_off(_LOCAL, error)
                return
            self._tell(self._local_gradient, chosen, gradient)
            if self._accumulated_gradient and not self.engine.keeps_local_sum:
                self._only_one_adds_up(chosen, gradient)

        return came

    @property
    def _wants_local_gradients(self) -> bool:
        return bool(self._local_gradient or (self._accumulated_gradient and not self.engine.keeps_local_sum))

    def _only_one_adds_up(self, parts: Sequence[tuple[str, slice | None]], gradient: torch.Tensor) -> None:
        """Where ranks share each micro-step by itself, the sum of several exists nowhere, and one is its own sum."""
        if not self.clock.micro_step:
            self._tell(self._accumulated_gradient, parts, gradient)
            return
        self._events.take_back(_ACCUMULATED, list(self.targets.parameters))
        self._events.switch_off(_ACCUMULATED, ModelError(_NOWHERE_ADDED_UP))

    def _chosen(self, accumulator: Accumulator) -> list[tuple[str, slice | None]]:
        return [(name, part) for name, part in accumulator.parts if name in self.targets.parameters]

    def _tell(
        self,
        calls: Sequence[Callable[[str, torch.Tensor], None]],
        parts: Sequence[tuple[str, slice | None]],
        gradient: torch.Tensor,
    ) -> None:
        for name, part in parts:
            own = gradient
            if part is not None:
                own = gradient.detach().reshape(-1)[part].view(self.targets.shares[name].shape)
            for call in calls:
                call(name, own)

    def _backward_ended(self) -> None:
        self._outermost_backward_is_followed = False
        if self.engine.reduces_in_backward:
            self.gradients_are_reduced()

    def gradients_are_reduced(self) -> None:
        """Gradients are complete: accumulated, reduced over ranks, not clipped."""
        if self._fired or self._misses_accumulators:
            for call in self._backward_ended_calls:
                call()
            self._fired.clear()

    def _end_step(self) -> None:
        if self._module_tensors is not None:
            self._module_tensors.step_ended()
        self._events.step_ended()

    def _is_ours(self, optimizer: torch.optim.Optimizer) -> bool:
        # Also one made later: a loop may replace the optimizer it was watched with.
        return self.targets.are_updated_by(optimizer)

    def _update_began(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self._is_ours(optimizer):
            if any(optimizer is given for given in self._given_optimizers):
                self._events.switch_off("optimizer", optimizers.taken_away(optimizer))
            return
        if self.clock.update_began(self.engine.parameter_ids(optimizer)):
            self._end_step()
            # Optimizers that take turns unevenly: this one's gradients came while the step before was still open.
            for look_again in self._backward_ended_calls:
                look_again()
        for called in self._update_called_calls:
            called(optimizer)
        # With a closure, backward runs inside step: these gradients are stale, the right ones come at its end.
        if not optimizers.has_closure(args, kwargs):
            for call in self._update_began_calls:
                call(optimizer)

    def _update_ended(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self._is_ours(optimizer):
            return
        if optimizers.has_closure(args, kwargs):
            for call in self._update_began_calls:
                call(optimizer)
        for call in self._update_ended_calls:
            call(optimizer)
        self._updated_since_scaler_step = True
        self._finish_update(optimizer)
        if (found_inf := getattr(optimizer, "found_inf", None)) is not None:
            self._log_skipped(found_inf)

    def _finish_update(self, optimizer: torch.optim.Optimizer) -> None:
        self.clock.update_ended(self.engine.parameter_ids(optimizer))
        self._events.seal()
        if self.clock.is_complete:
            self._complete_step()

    def _complete_step(self) -> None:
        # What another model's backward left in parameters that nobody updated is no gradient of this step.
        parameters = self.targets.parameters
        idle = [name for name, parameter in parameters.items() if not self.clock.has_updated(id(parameter))]
        self._events.take_back("gradient", idle)
        self._events.update_completed()

    def update_by_hand(self) -> None:
        """The loop says that it has updated the weights itself."""
        if not self.clock.has_update:
            for call in (*self._update_called_calls, *self._update_began_calls, *self._update_ended_calls):
                call(None)

    def update_was_skipped(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """A runtime with a loss scale of its own has thrown this step's gradients away."""
        self._log_skipped(torch.ones((), device="cpu"))
        all_there_are = self._given_optimizers or discovery.live_optimizers()
        for each in all_there_are if optimizer is None else [optimizer]:
            if self._is_ours(each):
                self._finish_update(each)

    def _after_scaler_step(self, optimizer: Any, *_: Any) -> None:
        optimizer = optimizers.innermost(optimizer)
        if not self._is_ours(optimizer):
            return
        if not self._updated_since_scaler_step:
            self._log_skipped(torch.ones((), device="cpu"))
            self._finish_update(optimizer)
        elif not optimizers.is_scaled_by_itself(optimizer):
            self._log_skipped(torch.zeros((), device="cpu"))
        self._updated_since_scaler_step = False

    def _log_skipped(self, skipped: torch.Tensor) -> None:
        """Mark the step when one of its optimizers skipped, whatever the others did."""
        if self._skipped[0] == self.clock.step:
            skipped = torch.maximum(skipped, self._skipped[1])
        self._skipped = self.clock.step, skipped
        self._events.log(skipped_step=skipped)
