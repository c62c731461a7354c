"""Follow a torch training loop: its step and pass, when gradients are complete and when updates happen."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch

from vario.backends.nested_tensors import leaves
from vario.backends.protocols.events import TRAINING_LOOP, Events, Inputs
from vario.backends.torch.engines import optimizers
from vario.backends.torch.loop import hooks, module_hooks, operators, pass_hooks
from vario.backends.torch.loop.accumulation import Accumulation
from vario.backends.torch.loop.backward_losses import BackwardLosses
from vario.backends.torch.loop.complete_gradients import CompleteGradients
from vario.backends.torch.loop.light_steps import LightSteps
from vario.backends.torch.loop.pipelining import Pipelines
from vario.backends.torch.loop.scaling import LossScaling, SkippedSteps
from vario.backends.torch.loop.subscriptions import Subscribing, Subscriptions
from vario.backends.torch.loop.training_threads import Turns
from vario.backends.torch.loop.updaters import Updaters
from vario.backends.torch.modules.activations import ModuleTensors
from vario.backends.torch.naming import entries, has_forward
from vario.backends.torch.targets import Targets
from vario.backends.torch.trainers import TrainerReports
from vario.core.clock import Clock

_UNSEEN: Inputs = (), {}


class TrainingLoop(Subscribing):
    """Turns what torch and an engine do into the events that probes subscribe to."""

    def __init__(self, targets: Targets, scaler: Any) -> None:
        super().__init__(Subscriptions(self._is_training_pass))
        self.clock = Clock()
        self.turns = Turns()
        self.targets = targets
        self.engine = targets.engine
        self.clock.calls_are_passes = self.engine.calls_are_passes
        self._names = targets.engine.names
        if targets.parameters is not targets.all_parameters:
            self._names = {id(parameter): name for name, parameter in targets.parameters.items()}
        self.updaters = Updaters(targets, self.clock)
        self._device = next(iter(targets.all_parameters.values())).device
        self.returns_loss = False
        self.losses_add_up = False
        self._scaling = LossScaling(scaler, self._after_scaler_step)
        self._accumulation = Accumulation(
            targets, self.clock, self._calls, self.turns, end_step=self._end_step, backward_ended=self._backward_ended
        )
        known = (targets, self.clock, self._calls, self._accumulation)
        self._light = LightSteps(*known, gradients=self.complete_gradients, scale=self.loss_scale)
        self._losses = BackwardLosses(
            targets, self._accumulation, self.loss_scale, self._calls, self.turns, self._light
        )
        self._reports = TrainerReports(targets, self.clock, partial(setattr, self, "losses_add_up", True))
        self._undo = hooks.Undos()
        self._module_tensors: ModuleTensors | None = None
        self._pass_trains: bool | None = None
        self._pass = 0
        self._other_began: float | None = None
        self._was_in_training_mode = False
        self._updated_since_scaler_step = False
        self._follows_entries = False
        self._is_new = True
        self._skipped = SkippedSteps(self.clock)

    def attach(self, events: Events) -> None:
        """Start following the training loop."""
        self._events = events
        calls = self._calls
        self._undo.add(self.targets.claim())
        operators.define()
        self._undo.add(self._scaling.undo)
        self._scaling.attach()
        if calls.module_values is not None or calls.module_gradients is not None:
            self._module_tensors = ModuleTensors(
                calls.module_values, calls.module_gradients, self.clock, self.turns, calls.separates_gradients
            )
            self._undo.add(self._module_tensors.attach(self.targets.modules, self.targets.roots))
        self._undo.add(calls.module_calls.attach(self.targets.all_modules))
        # Last, so that its hooks run before those on the root's own inputs: the pass begins with them.
        for name, root in self.targets.roots.items():
            self._follow_root(name, root)
        self._undo.add(self._accumulation.attach(events))
        if calls.backward_loss:
            self._undo.add(self._losses.attach(events))
        self._light.attach(events)
        self._undo.add(self._reports.attach(events, self._calls.tell_what_was_reported))
        self._undo.add(self.engine.attach(self))
        guarded = partial(events.guarded, TRAINING_LOOP)
        self._pipelines = Pipelines(self.targets.roots, self.clock, self._look_at_gradients, guarded)
        self._undo.add(self._pipelines.detach)
        self._pipelines.look()
        self.look_for_accumulators()
        self._undo.add(hooks.around_updates(guarded(self._update_began), guarded(self._update_ended)))

    def look_for_accumulators(self) -> None:
        """Hook the tensors that accumulate gradients now."""
        self._accumulation.look()

    def _follow_root(self, name: str, root: torch.nn.Module) -> None:
        slot = operators.new_pass_slot(
            partial(self._compiled_forward_began, name), lambda losses: self._tell_of_end(losses[0] if losses else None)
        )
        self._undo.add(lambda: operators.free_slot(slot))
        root.__dict__[pass_hooks.SLOT] = slot
        self._undo.add(lambda: root.__dict__.pop(pass_hooks.SLOT, None))

        def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            self._forward_began(name, torch.is_grad_enabled(), module.training, (args, kwargs))

        def after(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            # torch calls this one also when forward raised, without an output.
            has_failed = output is None and bool(self._pass_trains) and sys.exc_info()[0] is not None
            if has_failed:
                self._light.leave()
            elif self._light.is_on and self._pass_trains:
                self._pass_trains = None
                return
            else:
                self._tell_of_end(output)
            self._forward_ended(output)
            if has_failed:
                self.clock.pass_failed(name)
                self._events.frames.forget_pass()

        first = self._events.guarded(TRAINING_LOOP, self.turns.only(before, self._events.switch_off))
        last = self._events.guarded(TRAINING_LOOP, self.turns.only(after))
        self._undo.add(module_hooks.before_forward(root, first, pass_hooks.pass_begins))
        self._undo.add(module_hooks.after_forward(root, last, pass_hooks.pass_ends, even_if_it_raised=True))
        if not has_forward(root):
            self._follow_entries(name, root)

    def _follow_entries(self, name: str, root: torch.nn.Module) -> None:
        """Follow the parts of a model that is not called as a whole: the first part called begins the pass."""
        self._follows_entries = True

        def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if not torch.is_grad_enabled() or hooks.current_backward() != -1:
                return
            if self._pass_trains is None and self.clock.awaits_pass:
                self._forward_began(name, True, module.training, (args, kwargs))
                self._forward_ended(None)

        for module in entries(root):
            first = self.turns.only(before, self._events.switch_off)
            self._undo.add(module_hooks.before_forward(module, self._events.guarded(TRAINING_LOOP, first)))

    def _compiled_forward_began(
        self, root: str, with_gradients: bool, is_training: bool, tensors: Sequence[torch.Tensor]
    ) -> None:
        self._forward_began(root, with_gradients, is_training, (tuple(tensors), {}))

    def _tell_of_end(self, output: Any) -> None:
        if self._pass_trains and not self._light.is_on and hooks.current_backward() == -1:
            for call in self._calls.pass_ended:
                call(output)

    def detach(self) -> None:
        """Leave the model and the optimizer exactly as they were."""
        self._undo()

    def finish(self) -> bool:
        """Training has ended: detect an update that no forward has shown; return whether one, or a backward, raised."""
        self._see_update_by_hand()
        return self._accumulation.backward_failed or self.clock.update_failed

    def _forward_began(self, root: str, with_gradients: bool, is_training: bool, inputs: Inputs = _UNSEEN) -> None:
        if hooks.current_backward() != -1:
            return  # a checkpoint around the whole model recomputes it
        if self._light.is_regular and with_gradients and self._takes_light_pass(root, is_training, inputs):
            return
        self._pipelines.look()
        # An evaluation may run with gradients enabled; a model trained in eval mode is never in the other mode.
        self._was_in_training_mode = self._was_in_training_mode or is_training
        with_gradients = with_gradients and (is_training or not self._was_in_training_mode)
        with_gradients = with_gradients and not self._pipelines.is_rehearsal(root)
        self._pass_trains = with_gradients
        if self._module_tensors is not None:
            self._module_tensors.forward_began(with_gradients, inputs is not _UNSEEN)
        if not with_gradients:
            self._other_began = perf_counter()
            return
        self._scaling.forward_began()
        self._reports.forward_began()
        self.updaters.forward_began()
        self._is_new = False
        self._see_update_by_hand()
        self.look_for_accumulators()
        self._forget_what_failed()
        self._accumulation.forward_began()
        is_new = self.clock.awaits_pass
        if self.clock.forward_began():
            self._end_step()
        self._light.pass_came()
        self._pass = self.clock.pass_began(root)
        self._events.frames.begin_pass(is_new)
        for call in self._calls.pass_began:
            call(root, inputs)

    def _takes_light_pass(self, root: str, is_training: bool, inputs: Inputs) -> bool:
        """Take the forward pass of a light step, and end the step before; return whether that was all."""
        if (self._was_in_training_mode and not is_training) or self._accumulation.backward_failed:
            return False
        if self.clock.is_complete:
            self._end_step()
        self._pass_trains = self._light.takes_pass(root, inputs)
        return self._pass_trains

    def _see_update_by_hand(self) -> None:
        if self.updaters.has_updated_by_hand():
            self.updated_by_hand()
            self._end_step()

    def _forget_what_failed(self) -> None:
        """Drop a backward or an update that raised: a loop may catch that and continue. Neither is in progress now."""
        backward_failed, update_failed = self._accumulation.backward_failed, self.clock.update_failed
        if update_failed:
            self.clock.drop_update()
            self._events.frames.forget_update()
        if backward_failed:
            self._accumulation.drop_backward()
            self.clock.backward_failed()
            self._events.frames.forget_micro_step()
            for call in self._calls.backward_failed:
                call()

    def pass_began(self) -> None:
        """Start a training pass of a trainer that does not call the outermost module."""
        self.returns_loss = True
        self._forward_began(next(iter(self.targets.roots)), True, True)

    def pass_ended(self) -> None:
        """End that pass: what runs now, such as a validation, is not part of it."""
        self._forward_ended(None)

    def _is_training_pass(self) -> bool:
        # Reentrant checkpointing runs its first forward without gradients: what counts is how the root was called.
        trains = torch.is_grad_enabled() if self._pass_trains is None else self._pass_trains
        return trains and self.turns.takes_part()

    def _forward_ended(self, output: Any) -> None:
        if self._pass_trains:
            self._accumulation.forward_ended()
        self._calls.tell_of_other_pass(self._other_began)
        self._other_began = None
        self._pass_trains = None
        if self._module_tensors is not None:
            self._module_tensors.forward_ended()
        if torch.is_grad_enabled() and hooks.current_backward() == -1:
            try:
                for _, tensor in leaves(torch.Tensor, output, ""):
                    if tensor.grad_fn is not None:
                        hooks.on_gradient(tensor, partial(self._accumulation.outermost_backward_began, self._pass))
            except Exception as error:  # noqa: BLE001 - the failure policy: a container may raise anything when opened
                self._events.switch_off("model output", error)

    def loss_scale(self) -> torch.Tensor | None:
        """Return what the loss of this step is multiplied by."""
        scale = self.engine.loss_scale()
        return self._scaling.scale() if scale is None else scale

    def part_updated_by(self, optimizers: Collection[torch.optim.Optimizer]) -> str:
        """Return the part of the model that these update together; empty if no other optimizer updates another part."""
        return self.updaters.part_updated_by(optimizers)

    def _backward_ended(self) -> None:
        if self._module_tensors is not None:
            self._module_tensors.backward_ended()
        if self.engine.reduces_in_backward:
            self.gradients_are_reduced()

    def gradients_are_reduced(self) -> None:
        """Take complete gradients: accumulated, reduced over ranks, not clipped."""
        if self._accumulation.has_fired or self._accumulation.misses_accumulators:
            self._is_new = False
            self._look_at_gradients()
            self._accumulation.forget_fired()

    def _look_at_gradients(self) -> None:
        gradients = self.complete_gradients()
        for call in self._calls.backward_ended:
            call(gradients)

    def complete_gradients(self) -> CompleteGradients:
        """Return the gradients as they are now: those of a backward pass, once it has ended."""
        return CompleteGradients(self.targets, self.clock, self._accumulation.order, self._device, self.loss_scale)

    def _end_step(self) -> None:
        if self._module_tensors is not None:
            self._module_tensors.step_ended()
        self._events.step_ended()

    def _is_ours(self, optimizer: torch.optim.Optimizer) -> bool:
        # Also one created later: a loop may replace the optimizer it was watched with.
        return self.targets.are_updated_by(optimizer)

    def _update_began(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._light.is_on and self.turns.takes_part() and self._light.takes_update(optimizer, args, kwargs):
            return
        if not self._is_ours(optimizer):
            if self.updaters.is_given(optimizer):
                self._events.switch_off("optimizer", optimizers.taken_away(optimizer))
            return
        if not self.turns.takes_part():
            return
        self.updaters.update_began()
        self._accumulation.update_began()
        is_new, self._is_new = self._is_new, False
        has_closure = optimizers.has_closure(args, kwargs)
        if self.clock.update_began(numbers := self.engine.parameter_ids(optimizer), has_closure):
            self._end_step_before_its_passes()
        elif self.clock.has_update:
            # Without this optimizer the step may have looked complete.
            held = set(numbers)
            updated = [name for name, parameter in self.targets.parameters.items() if id(parameter) in held]
            self._events.frames.bring_back("gradient", updated)
        elif is_new and not has_closure:
            self._look_at_gradients()  # watching began after this step's backward
        self._light.update_came(optimizer, has_closure)
        for called in self._calls.update_called:
            called(optimizer)
        # With a closure, backward runs inside step: these gradients are stale, the right ones come at its end.
        if not has_closure:
            for call in self._calls.update_began:
                call(optimizer)

    def _end_step_before_its_passes(self) -> None:
        """End the previous step if it was still open during this optimizer's passes: optimizers take turns unevenly."""
        frames = self._events.frames
        frames.hold_pass(self.clock.first_micro_step_since_update)
        self.clock.keep_passes()
        self._end_step()
        self._look_at_gradients()
        frames.take_up_pass()

    def _update_ended(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._light.is_on and self._light.ends_update(optimizer):
            return
        if not self._is_ours(optimizer) or not self.turns.takes_part():
            return
        for told in self._calls.update_returned:
            told(optimizer)
        if optimizers.has_closure(args, kwargs):
            for call in self._calls.update_began:
                call(optimizer)
        self.updaters.update_ended(optimizer)
        for call in self._calls.update_ended:
            call(optimizer)
        self._updated_since_scaler_step = True
        self._finish_update(optimizer)
        if (found_inf := getattr(optimizer, "found_inf", None)) is not None:
            self._skipped.log(found_inf, self._events.log)

    def _finish_update(self, optimizer: torch.optim.Optimizer) -> None:
        self.clock.update_ended(self.engine.parameter_ids(optimizer))
        self._events.frames.seal()
        if not self.clock.is_complete:
            return
        # Gradients that another model's backward left in parameters without an update do not belong to this step.
        if idle := self.clock.not_updated(self._names):
            self._events.frames.set_aside("gradient", idle)
        if not self.clock.has_pass and not self._follows_entries:
            # It can be called as a whole, and this loop does not.
            for name, root in self.targets.roots.items():
                self._follow_entries(name, root)
        # Last: a subscriber may end the watching, and then nothing must be hooked any more.
        self._events.update_completed()

    def updated_by_hand(self) -> None:
        """Take an update that the loop reports itself."""
        if not self.clock.has_update:
            calls = self._calls
            whole = (*calls.update_called, *calls.update_began, *calls.update_ended)
            for call in calls.light_update if self._events.may_be_light else whole:
                call(None)

    def update_was_skipped(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Drop this step's gradients, which a runtime with its own loss scale has discarded."""
        self._skipped.log(torch.ones((), device="cpu"), self._events.log)
        for each in self.updaters.known() if optimizer is None else [optimizer]:
            if self._is_ours(each):
                self._finish_update(each)

    def _after_scaler_step(self, optimizer: Any, *_: Any) -> None:
        optimizer = optimizers.innermost(optimizer)
        if not self._is_ours(optimizer):
            return
        if not self._updated_since_scaler_step:
            self._skipped.log(torch.ones((), device="cpu"), self._events.log)
            self._finish_update(optimizer)
        elif not optimizers.is_scaled_by_itself(optimizer):
            self._skipped.log(torch.zeros((), device="cpu"), self._events.log)
        self._updated_since_scaler_step = False
