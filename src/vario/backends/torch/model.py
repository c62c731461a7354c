"""A torch model under watch: the events of its training loop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from vario.backends.base import Events, Observer
from vario.backends.torch import discovery, hooks, operators, process
from vario.backends.torch.activations import ModuleTensors
from vario.backends.torch.attention import attention_rows, is_causal
from vario.backends.torch.calls import Call, ModuleCalls
from vario.backends.torch.engines import plain
from vario.backends.torch.scaling import LossScaling
from vario.backends.torch.spectra import SpectralNorms, stable_rank
from vario.backends.torch.summaries import TorchSummaries
from vario.backends.torch.targets import Targets
from vario.backends.torch.tensors import form, leaves, why_without_numbers
from vario.records import Form
from vario.selector import Choice, modules_matching
from vario.steps import Clock


class TorchModel:
    """Follows one or several modules and the optimizers that update them."""

    def __init__(self, models: Any, optimizers: Any, selector: Choice, scaler: Any) -> None:
        self.clock = Clock()
        self.rank, self.world_size = process.rank_and_world_size()
        self.versions = process.versions()
        self.targets = Targets(models, selector)
        self._optimizers = [plain.innermost(optimizer) for optimizer in _as_list(optimizers)]
        for optimizer in self._optimizers:
            self.targets.check_optimizer(optimizer)
            self.clock.expect(hooks.parameter_ids(optimizer))
        self._scaling = LossScaling(scaler, self._after_scaler_step)
        self._undo = hooks.Undos()
        self._module_values: Observer | None = None
        self._module_gradients: Observer | None = None
        self._separates_gradients = False
        self._module_tensors: ModuleTensors | None = None
        self._module_calls = ModuleCalls(self._is_training_pass)
        self._pass_trains: bool | None = None
        self._pass = 0
        self._spectral_norms = SpectralNorms()
        self._local_gradient: list[Callable[[str, torch.Tensor], None]] = []
        self._accumulated_gradient: list[Callable[[str, torch.Tensor], None]] = []
        self._backward_ended_calls: list[Callable[[], None]] = []
        self._update_called_calls: list[Callable[[Any], None]] = []
        self._update_began_calls: list[Callable[[Any], None]] = []
        self._update_ended_calls: list[Callable[[Any], None]] = []
        self._expects_optimizers = bool(self._optimizers)
        self._was_in_training_mode = False
        self._unfollowed: dict[str, torch.nn.Parameter] = {}
        self._fired: dict[str, None] = {}
        self._backward = -1
        self._outermost_backward_is_followed = False
        self._updated_since_scaler_step = False
        self._skipped = -1, torch.zeros((), device="cpu")

    def summaries(self, eps: float, columns: frozenset[str]) -> TorchSummaries:
        """What reduces this model's tensors."""
        return TorchSummaries(eps, columns)

    def why_skipped(self, tensor: torch.Tensor) -> str:
        """Why a tensor has no Summary, in words."""
        return why_without_numbers(tensor)

    def describe(self, tensor: torch.Tensor) -> Form:
        """Shape and dtype of a tensor."""
        return form(tensor)

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
        self._unfollowed = dict(self.targets.all_parameters)
        self._follow_parameters()
        self._undo.add(hooks.around_updates(self._update_began, self._update_ended))

    def _follow_parameters(self) -> None:
        """Hook the parameters that need a gradient by now: fine-tuning may thaw frozen ones on the way."""
        thawed = [name for name, parameter in self._unfollowed.items() if parameter.requires_grad]
        for name in thawed:
            parameter = self._unfollowed.pop(name)
            self._undo.add(hooks.after_accumulation(parameter, self._accumulated(name)))
            if self._local_gradient and name in self.targets.parameters:
                self._undo.add(hooks.on_gradient(parameter, self._local_gradient_came(name)))

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
                    self.clock.expect(hooks.parameter_ids(optimizer))
        self._follow_parameters()
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

    def _accumulated(self, name: str) -> Callable[[torch.Tensor], None]:
        def accumulated(parameter: torch.Tensor) -> None:
            if self.clock.gradient_came(id(parameter)):
                self._end_step()
            self._fired[name] = None
            if self._accumulated_gradient and name in self.targets.parameters and parameter.grad is not None:
                for call in self._accumulated_gradient:
                    call(name, parameter.grad)
            if self._outermost_backward_is_followed:
                return
            backward = hooks.current_backward()
            if backward not in (self._backward, -1):
                self._backward = backward
                hooks.at_end_of_backward(self._backward_ended)

        return accumulated

    def _local_gradient_came(self, name: str) -> Callable[[torch.Tensor], None]:
        parameter = self.targets.parameters[name]

        def came(gradient: torch.Tensor) -> None:
            if not hooks.is_accumulating(parameter):
                return
            if self.clock.gradient_came(id(parameter)):
                self._end_step()
            for call in self._local_gradient:
                call(name, gradient)

        return came

    def _backward_ended(self) -> None:
        self._outermost_backward_is_followed = False
        if self._fired:
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
            return
        if self.clock.update_began(hooks.parameter_ids(optimizer)):
            self._end_step()
            # Optimizers that take turns unevenly: this one's gradients came while the step before was still open.
            for look_again in self._backward_ended_calls:
                look_again()
        for called in self._update_called_calls:
            called(optimizer)
        # With a closure, backward runs inside step: these gradients are stale, the right ones come at its end.
        if not plain.has_closure(args, kwargs):
            for call in self._update_began_calls:
                call(optimizer)

    def _update_ended(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self._is_ours(optimizer):
            return
        if plain.has_closure(args, kwargs):
            for call in self._update_began_calls:
                call(optimizer)
        for call in self._update_ended_calls:
            call(optimizer)
        self._updated_since_scaler_step = True
        self._finish_update(optimizer)
        if (found_inf := getattr(optimizer, "found_inf", None)) is not None:
            self._log_skipped(found_inf)

    def _finish_update(self, optimizer: torch.optim.Optimizer) -> None:
        self.clock.update_ended(hooks.parameter_ids(optimizer))
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

    def _after_scaler_step(self, optimizer: Any, *_: Any) -> None:
        optimizer = plain.innermost(optimizer)
        if not self._is_ours(optimizer):
            return
        if not self._updated_since_scaler_step:
            self._log_skipped(torch.ones((), device="cpu"))
            self._finish_update(optimizer)
        elif not plain.is_scaled_by_itself(optimizer):
            self._log_skipped(torch.zeros((), device="cpu"))
        self._updated_since_scaler_step = False

    def _log_skipped(self, skipped: torch.Tensor) -> None:
        """Mark the step when one of its optimizers skipped, whatever the others did."""
        if self._skipped[0] == self.clock.step:
            skipped = torch.maximum(skipped, self._skipped[1])
        self._skipped = self.clock.step, skipped
        self._events.log(skipped_step=skipped)

    # Where the tensors are

    def gradients(self, optimizer: Any = None) -> tuple[list[str], list[torch.Tensor]]:
        """Names and gradients: of one optimizer's parameters, or of all that this step has not updated yet."""
        if optimizer is not None:
            return self.targets.gradients(plain.parameters(optimizer))
        parameters = self.targets.parameters
        names = [name for name in self._fired if name in parameters]
        names += [name for name in parameters if name not in self._fired]
        return self.targets.gradients(
            parameters[name] for name in names if not self.clock.has_updated(id(parameters[name]))
        )

    def modules_matching(self, patterns: Sequence[str]) -> list[str]:
        """Names of all modules that match, chosen as targets or not; a pattern that matches none is refused."""
        return modules_matching(patterns, list(self.targets.all_modules))

    def attention_rows(
        self, name: str, query: torch.Tensor, key: torch.Tensor, order: str, first_only: bool = False
    ) -> dict[str, torch.Tensor]:
        """Entropy, largest probability and largest logit of each row of a module's attention."""
        causal = is_causal(self.targets.all_modules[name])
        return attention_rows(query, key, order, causal=causal, first_only=first_only)

    def matrices(self, names: Sequence[str] | None = None) -> dict[str, torch.Tensor]:
        """The two-dimensional weights of these modules or of the chosen targets; embeddings and shards are left out."""
        modules = self.targets.modules
        if names is not None:
            modules = {name: self.targets.all_modules[name] for name in names}
        return self._spectral_norms.matrices(modules)

    def spectral_norm(self, name: str, matrix: torch.Tensor) -> torch.Tensor:
        """The largest singular value of a matrix, followed from step to step under a name."""
        return self._spectral_norms.measure(name, matrix)

    def stable_rank(self, matrix: torch.Tensor, spectral_norm: torch.Tensor) -> torch.Tensor:
        """The sum of a matrix's squared singular values over the largest one squared."""
        return stable_rank(matrix, spectral_norm)

    def loss_scale(self) -> torch.Tensor | None:
        """What the loss of this step is multiplied by."""
        return self._scaling.scale()

    def optimizer_scale(self, optimizer: Any) -> torch.Tensor | None:
        """What the gradients an optimizer gets are still multiplied by: fused ones unscale by themselves."""
        scale: torch.Tensor | None = getattr(optimizer, "grad_scale", None)
        return scale


def _as_list(optimizers: Any) -> list[Any]:
    if optimizers is None:
        return []
    return list(optimizers) if isinstance(optimizers, Sequence) else [optimizers]
