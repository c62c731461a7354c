"""A torch model under watch: the training loop's events, and where its tensors are."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from vario.backends.base import Events, Observer
from vario.backends.torch import hooks, naming, operators, process
from vario.backends.torch.activations import ModuleTensors
from vario.backends.torch.engines import plain
from vario.backends.torch.scaling import LossScaling
from vario.backends.torch.summaries import TorchSummaries
from vario.backends.torch.tensors import leaves, why_without_numbers
from vario.errors import ModelError
from vario.records import Structure
from vario.selector import Selector
from vario.steps import Clock

_watched_models: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


class TorchModel:
    """Follows one or several modules and the optimizers that update them."""

    def __init__(self, models: Any, optimizers: Any, selector: Selector, scaler: Any) -> None:
        self.clock = Clock()
        self.rank, self.world_size = process.rank_and_world_size()
        self.versions = process.versions()
        self._roots: dict[str, torch.nn.Module] = {}
        self._modules: dict[str, torch.nn.Module] = {}
        self._parameters: dict[str, torch.nn.Parameter] = {}
        self._names: dict[int, str] = {}
        self._known_parameters: set[int] = set()
        self._optimizers = [plain.innermost(optimizer) for optimizer in _as_list(optimizers)]
        self._selector = selector
        for prefix, model in _as_models(models).items():
            self._take(prefix, model)
        selector.check([*self._modules_of_all(), *self._names_of_all()])
        self._choose()
        self._check_optimizers()
        for optimizer in self._optimizers:
            self.clock.expect(hooks.parameter_ids(optimizer))
        self._scaling = LossScaling(scaler, self._after_scaler_step)
        self._undo = hooks.Undos()
        self._module_values: Observer | None = None
        self._module_gradients: Observer | None = None
        self._module_tensors: ModuleTensors | None = None
        self._local_gradient: list[Callable[[str, torch.Tensor], None]] = []
        self._backward_ended_calls: list[Callable[[], None]] = []
        self._update_began_calls: list[Callable[[Any], None]] = []
        self._update_ended_calls: list[Callable[[Any], None]] = []
        self._unfollowed: dict[str, torch.nn.Parameter] = {}
        self._fired: dict[str, None] = {}
        self._backward = -1
        self._outermost_backward_is_followed = False
        self._updated_since_scaler_step = False
        self._skipped = -1, torch.zeros((), device="cpu")

    # What is watched

    def _take(self, prefix: str, model: Any) -> None:
        if not isinstance(model, torch.nn.Module):
            raise ModelError(f"watch: expected a torch.nn.Module, got {type(model).__name__}")
        bare = naming.unwrap(model)
        if next(bare.parameters(), None) is None:
            raise ModelError(
                f"watch: {type(bare).__name__} has no parameters, so there is nothing to train or to watch"
            )
        if bare in _watched_models:
            raise ModelError(f"watch: {type(bare).__name__} is watched already. Close its Monitor first.")
        self._roots[prefix] = model

    def _modules_of_all(self) -> dict[str, torch.nn.Module]:
        return {
            name: module
            for prefix, root in self._roots.items()
            for name, module in naming.named_modules(naming.unwrap(root), prefix)
        }

    def _names_of_all(self) -> dict[str, torch.nn.Parameter]:
        return {
            name: parameter
            for prefix, root in self._roots.items()
            for name, parameter in naming.named_parameters(naming.unwrap(root), prefix)
        }

    def _choose(self) -> None:
        modules, parameters = self._modules_of_all(), self._names_of_all()
        self._modules = {name: modules[name] for name in self._selector.modules(modules)}
        self._parameters = {name: parameters[name] for name in self._selector.parameters(parameters)}
        self._names = {id(parameter): name for name, parameter in self._parameters.items()}
        self._known_parameters = {id(parameter) for parameter in parameters.values()}

    def _check_optimizers(self) -> None:
        for optimizer in self._optimizers:
            if self._known_parameters.isdisjoint(hooks.parameter_ids(optimizer)):
                raise ModelError(
                    f"watch: {type(optimizer).__name__} holds none of the model's parameters. Was the model replaced "
                    "or moved to another copy after the optimizer was made?"
                )

    def summaries(self, eps: float, columns: frozenset[str]) -> TorchSummaries:
        """What reduces this model's tensors."""
        return TorchSummaries(eps, columns)

    def why_skipped(self, tensor: torch.Tensor) -> str:
        """Why a tensor has no Summary, in words."""
        return why_without_numbers(tensor)

    def structure(self) -> Structure:
        """Modules and parameters, as `structure.json` holds them."""
        parts = [naming.structure(naming.unwrap(root), prefix) for prefix, root in self._roots.items()]
        return {key: [item for part in parts for item in part[key]] for key in ("modules", "parameters")}

    # Attaching

    def attach(self, events: Events) -> None:
        """Start following the training loop."""
        self._events = events
        operators.define()
        self._undo.add(self._scaling.undo)
        self._scaling.attach()
        if self._module_values is not None or self._module_gradients is not None:
            self._module_tensors = ModuleTensors(self._module_values, self._module_gradients)
            self._undo.add(self._module_tensors.attach(self._modules))
        # Last, so that its hooks run before those on the root's own inputs: the pass begins with them.
        for root in self._roots.values():
            self._follow_root(root)
        self._unfollowed = self._names_of_all()
        self._follow_parameters()
        self._undo.add(hooks.around_updates(self._update_began, self._update_ended))

    def _follow_parameters(self) -> None:
        """Hook the parameters that need a gradient by now: fine-tuning may thaw frozen ones on the way."""
        thawed = [name for name, parameter in self._unfollowed.items() if parameter.requires_grad]
        for name in thawed:
            parameter = self._unfollowed.pop(name)
            self._undo.add(hooks.after_accumulation(parameter, self._accumulated(name)))
            if self._local_gradient and name in self._parameters:
                self._undo.add(hooks.on_gradient(parameter, self._local_gradient_came(name)))

    def _follow_root(self, root: torch.nn.Module) -> None:
        bare = naming.unwrap(root)
        slot = operators.new_beginning(self._forward_began)
        _watched_models.add(bare)
        self._undo.add(lambda: operators.free_slot(slot))
        self._undo.add(lambda: _watched_models.discard(bare))

        def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if torch.compiler.is_compiling():
                torch.ops.vario.begin_forward(slot, torch.is_grad_enabled())
            else:
                self._forward_began(torch.is_grad_enabled())

        def after(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if not torch.compiler.is_compiling():
                self._forward_ended(output)

        self._undo.add(hooks.before_forward(root, before))
        self._undo.add(hooks.after_forward(root, after, even_if_it_raised=True))

    def detach(self) -> None:
        """Leave the model and the optimizer exactly as they were found."""
        self._undo()

    def on_module_values(self, observer: Observer) -> None:
        """Hand module inputs and outputs to this observer."""
        self._module_values = observer

    def on_module_gradients(self, observer: Observer) -> None:
        """Hand the gradients of module inputs and outputs to this observer."""
        self._module_gradients = observer

    def on_local_gradients(self, call: Callable[[str, torch.Tensor], None]) -> None:
        """Call with (name, gradient) for what one backward pass adds to each parameter's gradient."""
        self._local_gradient.append(call)

    def on_backward_ended(self, call: Callable[[], None]) -> None:
        """Call when gradients are complete and not yet clipped."""
        self._backward_ended_calls.append(call)

    def on_update_began(self, call: Callable[[Any], None]) -> None:
        """Call with the optimizer when it gets its gradients."""
        self._update_began_calls.append(call)

    def on_update_ended(self, call: Callable[[Any], None]) -> None:
        """Call with the optimizer when it has updated the weights."""
        self._update_ended_calls.append(call)

    # The training loop's events

    def _forward_began(self, with_gradients: bool) -> None:
        if hooks.current_backward() != -1:
            return  # a checkpoint around the whole model recomputes it
        if self._module_tensors is not None:
            self._module_tensors.forward_began(with_gradients)
        if not with_gradients:
            return
        self._scaling.forward_began()
        self._follow_parameters()
        self._outermost_backward_is_followed = False
        if self.clock.forward_began():
            self._end_step()

    def _forward_ended(self, output: Any) -> None:
        if self._module_tensors is not None:
            self._module_tensors.forward_ended()
        if torch.is_grad_enabled() and hooks.current_backward() == -1:
            try:
                for _, tensor in leaves(output, ""):
                    if tensor.grad_fn is not None:
                        tensor.register_hook(self._outermost_backward_began)
            except Exception as error:  # noqa: BLE001 - the failure policy: a container may raise anything when opened
                self._events.switch_off("model output", error)

    def _outermost_backward_began(self, gradient: torch.Tensor) -> None:
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
            if self._outermost_backward_is_followed:
                return
            backward = hooks.current_backward()
            if backward not in (self._backward, -1):
                self._backward = backward
                hooks.at_end_of_backward(self._backward_ended)

        return accumulated

    def _local_gradient_came(self, name: str) -> Callable[[torch.Tensor], None]:
        parameter = self._parameters[name]

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
        if self._optimizers:
            return any(optimizer is known for known in self._optimizers)
        return not self._known_parameters.isdisjoint(hooks.parameter_ids(optimizer))

    def _update_began(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self._is_ours(optimizer):
            return
        if self.clock.update_began(hooks.parameter_ids(optimizer)):
            self._end_step()
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
            self._events.update_completed()

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
            return self._pick(plain.parameters(optimizer), plain.gradient)
        names = [name for name in self._fired if name in self._parameters]
        names += [name for name in self._parameters if name not in self._fired]
        waiting = [self._parameters[name] for name in names]
        return self._pick((p for p in waiting if not self.clock.has_updated(id(p))), plain.gradient)

    def weights(self, optimizer: Any) -> tuple[list[str], list[torch.Tensor]]:
        """Names and values of the chosen parameters an optimizer holds."""
        return self._pick(plain.parameters(optimizer), lambda parameter: parameter)

    def frozen_weights(self) -> tuple[list[str], list[torch.Tensor]]:
        """Names and values of the chosen parameters that need no gradient."""
        frozen = (parameter for parameter in self._parameters.values() if not parameter.requires_grad)
        return self._pick(frozen, lambda parameter: parameter)

    def moments(self, optimizer: Any) -> tuple[list[str], list[torch.Tensor]]:
        """Names (`weight:exp_avg`) and values of every tensor of an optimizer's state."""
        names: list[str] = []
        tensors: list[torch.Tensor] = []
        for parameter in plain.parameters(optimizer):
            name = self._names.get(id(parameter))
            if name is not None:
                for key, tensor in plain.state_tensors(optimizer, parameter):
                    names.append(f"{name}:{key}")
                    tensors.append(tensor)
        return names, tensors

    def _pick(
        self, parameters: Iterable[torch.Tensor], value: Callable[[Any], torch.Tensor | None]
    ) -> tuple[list[str], list[torch.Tensor]]:
        names: list[str] = []
        tensors: list[torch.Tensor] = []
        for parameter in parameters:
            name = self._names.get(id(parameter))
            tensor = value(parameter) if name is not None else None
            if name is not None and tensor is not None:
                names.append(name)
                tensors.append(tensor)
        return names, tensors

    def loss_scale(self) -> torch.Tensor | None:
        """What the loss of this step is multiplied by."""
        return self._scaling.scale()

    def optimizer_scale(self, optimizer: Any) -> torch.Tensor | None:
        """What the gradients an optimizer gets are still multiplied by: fused ones unscale by themselves."""
        scale: torch.Tensor | None = getattr(optimizer, "grad_scale", None)
        return scale

    def device_scalars(self) -> dict[str, float]:
        """Memory in use on the model's CUDA devices, in bytes."""
        if not torch.cuda.is_available() or not torch.cuda.is_initialized():
            return {}
        devices = {parameter.device for parameter in self._parameters.values() if parameter.device.type == "cuda"}
        scalars: dict[str, float] = {}
        for device in sorted(devices, key=str):
            stats = torch.cuda.memory_stats_as_nested_dict(device)
            suffix = "" if len(devices) == 1 else f"_{device.index}"
            scalars[f"device_memory_bytes{suffix}"] = stats["allocated_bytes"]["all"]["current"]
            scalars[f"device_memory_peak_bytes{suffix}"] = stats["allocated_bytes"]["all"]["peak"]
            scalars[f"device_memory_reserved_bytes{suffix}"] = stats["reserved_bytes"]["all"]["current"]
        return scalars


def _as_list(optimizers: Any) -> list[Any]:
    if optimizers is None:
        return []
    return list(optimizers) if isinstance(optimizers, Sequence) else [optimizers]


def _as_models(models: Any) -> dict[str, Any]:
    if isinstance(models, torch.nn.Module) or not isinstance(models, (Mapping, Sequence)):
        return {"": models}
    named = models.items() if isinstance(models, Mapping) else enumerate(models)
    return {f"{name}.": model for name, model in named}
