"""Inputs and outputs of modules and the gradients that flow through them, in eager code and in compiled graphs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

import torch

from vario.backends.nested_tensors import inputs, leaves
from vario.backends.protocols.events import Undo
from vario.backends.protocols.observing import Observer
from vario.backends.torch import releases
from vario.backends.torch.loop import hooks, module_hooks, operators
from vario.backends.torch.loop.sparse_hooks import SparseHooks, has_compiled
from vario.backends.torch.loop.training_threads import Turns
from vario.backends.torch.modules.dynamo_guards import guard_hooks_in_dynamo
from vario.backends.torch.modules.input_gradients import CallInputs, Graph
from vario.backends.torch.modules.seen_tensors import GradientRow, SeenTensor, has_place
from vario.backends.torch.modules.waiting_tensors import WaitingTensors, waits_as_input, waits_as_output
from vario.backends.torch.naming import entered
from vario.core.clock import Clock
from vario.core.process import last_guard

log = logging.getLogger("vario")

_SLOT = f"{module_hooks.ATTRIBUTE}slot"


class ModuleTensors:
    """Passes the inputs and outputs of modules to the observers of two quantities."""

    def __init__(
        self,
        values: Observer | None,
        gradients: Observer | None,
        clock: Clock,
        turns: Turns,
        separates: bool = False,
    ) -> None:
        """With `separates` the gradient of an input is what comes back through that module, not from all its users."""
        self._values = values
        self._gradients = gradients
        self._clock = clock
        self._turns = turns
        self._separates = separates
        self._with_gradients = gradients is not None
        self._leaves: dict[int, tuple[SeenTensor, Undo]] = {}
        """Inputs that nothing computed: they outlive a pass, so one hook serves all passes of a step."""
        self.hooks = SparseHooks(lambda: self.is_watching)
        self._graph = Graph()
        self._call_inputs: list[tuple[str, CallInputs]] = []
        """Calls of modules that have not returned yet, by module name."""
        self._told_of_graphs = False
        self._inside_root: bool | None = None
        self._may_wait = False
        self._runs_backward_inside = False
        """Whether backward runs before the call of the outermost module returns."""
        self._waiting = WaitingTensors(values, gradients, clock, self._expect_gradient, self._gradient_hook)
        self._passes: Counter[str] = Counter()
        """Per target in a compiled graph: forward passes of this step whose gradient is still to come."""

    def attach(self, modules: Mapping[str, torch.nn.Module], roots: Mapping[str, torch.nn.Module]) -> Undo:
        """Hook these modules; torch.compile may come before or after."""
        undos = hooks.Undos()
        undos.add(guard_hooks_in_dynamo())
        operators.define()
        _attached.append(self)
        outermost, first = set(roots.values()), set(entered(roots))
        undos.add(lambda: _attached.remove(self))
        for name, module in modules.items():
            self._waiting.add_module(name, module)
            slot = operators.new_slot(
                lambda path, tensor, name=name: self._value_in_graph(f"{name}:{path}", tensor),  # type: ignore[misc]
                lambda path, tensor, name=name: self._gradient_in_graph(f"{name}:{path}", tensor),  # type: ignore[misc]
            )
            # A tensor attribute of the module is what compiled code can share between layers without recompiling.
            module.__dict__[_SLOT] = slot
            undos.add(lambda module=module, slot=slot: _forget(module, slot))  # type: ignore[misc]
            # Inputs are read before the call: an in-place module overwrites them.
            before, after = _HOOKS[self._with_gradients]
            undos.add(module_hooks.before_forward(module, self._before(name), before))
            undos.add(module_hooks.after_forward(module, self._after(name), after))
            if module not in outermost:
                self.hooks.add(module, (before, after), module in first)
        undos.add(self.hooks.clear)
        undos.add(self._waiting.close)
        undos.add(self.forget)
        return undos

    def forward_began(self, with_gradients: bool, is_call: bool) -> None:
        """Start a pass; it counts as training if gradients are enabled here.

        `is_call`: of the outermost module. Otherwise it is a trainer's, which may end after backward and update.
        """
        self._inside_root = with_gradients
        # Compiled graphs have their own memory, which they reuse without torch noticing.
        self._may_wait = not has_compiled() and not self._separates
        self._waiting.drop()
        is_alone = _attached == [self] and not self._runs_backward_inside
        if self._may_wait and with_gradients and is_call and is_alone and self._turns.takes_part():
            self._waiting.open()
        self._waiting.seen.clear()
        self._call_inputs.clear()
        self._graph.clear()
        for key in [key for key, (seen, _) in self._leaves.items() if seen.reference() is None]:
            del self._leaves[key]

    def forward_ended(self) -> None:
        """End the call of the outermost module."""
        self._waiting.close()
        self._inside_root = None
        self._graph.clear()

    def step_ended(self) -> None:
        """Start a new step."""
        self._passes.clear()
        self.forget()

    def forget(self) -> None:
        """Drop what was seen in the previous step. The first pass of the next one has already begun."""
        self._waiting.take_gradients()
        self._waiting.seen.clear()
        self._call_inputs.clear()
        self._graph.clear()
        for _, undo in self._leaves.values():
            undo()
        self._leaves.clear()

    def _before(self, name: str) -> Callable[..., None]:
        target, with_gradients = f"{name}:input", not self._separates

        def before_forward(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if not self._is_training():
                return
            if len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor):
                self._look(((target, args[0]),), with_gradients)
            else:
                self._look(((f"{name}:{at}", one) for at, one in inputs(torch.Tensor, args, kwargs)), with_gradients)
            if self._separates:
                self._enter(name, args, kwargs)

        return before_forward

    def _enter(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note where the gradients of these inputs will go, before the module may overwrite them."""
        if self._gradients is None or not self._gradients.watching or not torch.is_grad_enabled():
            return
        try:
            self._call_inputs.append((name, CallInputs(self._graph, args, kwargs)))
        except Exception as error:  # noqa: BLE001 - the failure policy
            self._gradients.failed(error)

    def _leave(self, name: str, output: Any) -> None:
        """Follow the gradients of the inputs of the call that ends; forget calls inside it that raised."""
        while self._call_inputs:
            called, call_inputs = self._call_inputs.pop()
            if called == name:
                assert self._gradients is not None
                call_inputs.follow(output, partial(self._through, name), self._gradients.failed)
                return

    def _through(self, name: str, path: str, tensor: torch.Tensor) -> Callable[[torch.Tensor], None]:
        seen = self._waiting.seen.get(id(tensor))
        return lambda gradient: self._came_through(f"{name}:{path}", seen, gradient)

    def _after(self, name: str) -> Callable[..., None]:
        target = f"{name}:output"

        def after_forward(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if self._is_training():
                self._look(leaves(torch.Tensor, output, target))
                if self._separates:
                    self._leave(name, output)

        return after_forward

    @property
    def is_watching(self) -> bool:
        """Whether this step is recorded."""
        values, gradients = self._values, self._gradients
        return (values is not None and values.watching) or (gradients is not None and gradients.watching)

    def _is_training(self) -> bool:
        """Whether what runs now is part of the followed training. The caller knows that the step is recorded."""
        if not self._turns.takes_part():
            return False
        # Reentrant checkpointing runs its first forward without gradients: what counts is how the root was called.
        return torch.is_grad_enabled() if self._inside_root is None else self._inside_root

    def _look(self, tensors: Iterable[tuple[str, torch.Tensor]], with_gradients: bool = True) -> None:
        """Take the tensors of one module, by target."""
        began = perf_counter()
        values, gradients = self._values, self._gradients
        try:
            # Inside backward a forward is a recomputation for checkpointing: its values were seen before.
            recomputing = hooks.current_backward() != -1
            wants_values = values is not None and values.watching and not recomputing
            wants_gradients = with_gradients and gradients is not None and gradients.watching
            may_wait = wants_values and with_gradients
            for target, tensor in tensors:
                if may_wait and self._waiting.takes(target, tensor):
                    continue
                seen = self._waiting.see(tensor)
                if wants_values:
                    if seen.row is None:
                        seen.row = values.observe(target, tensor, False, self._may_wait)  # type: ignore[union-attr]
                        seen.is_steady = values.is_steady(target)  # type: ignore[union-attr]
                    else:
                        values.add_row(target, seen.row)  # type: ignore[union-attr]
                    self._waiting.learn(target, seen)
                if wants_gradients and tensor.requires_grad:
                    self._expect_gradient(target, tensor, seen, recomputing)
        except Exception as error:  # noqa: BLE001 - the failure policy: a container may raise anything when opened
            for observer in (values, gradients):
                if observer is not None:
                    observer.failed(error)
        if (watching := values or gradients) is not None:
            watching.took(perf_counter() - began)

    def _expect_gradient(self, target: str, tensor: torch.Tensor, seen: SeenTensor, recomputing: bool = False) -> None:
        if target in seen.targets:
            return
        if tensor.is_leaf:
            # Reentrant checkpointing recomputes from a detached copy of its input; the input itself has our hook.
            if not recomputing:
                self._see_leaf(target, tensor)
            return
        seen.targets += (target,)
        if not seen.gradient_hooked:
            seen.gradient_hooked = True
            hook = self._waiting.gradient_hook(seen, target, tensor) if self._may_wait else None
            tensor.register_hook(hook or self._gradient_hook(seen))

    def _gradient_hook(self, seen: SeenTensor) -> Callable[[torch.Tensor], None]:
        return last_guard.never_raises(partial(self._gradient_came, seen))

    def backward_ended(self) -> None:
        """Take the gradients that have come."""
        if self._waiting.is_open:
            self._runs_backward_inside = True
            self._waiting.close()
        self._waiting.take_gradients()

    def _see_leaf(self, target: str, tensor: torch.Tensor) -> None:
        known = self._leaves.get(id(tensor))
        if known is None or known[0].reference() is not tensor:
            seen = SeenTensor(tensor, None)
            undo = hooks.on_gradient(tensor, partial(self._gradient_came, seen))
            known = self._leaves[id(tensor)] = seen, undo
        if target not in known[0].targets:
            known[0].targets += (target,)

    def _came_through(self, target: str, seen: SeenTensor | None, gradient: torch.Tensor) -> None:
        """Take a gradient that came back through one module; if that is the only user, it is the tensor's as well."""
        observer = self._gradients
        if observer is None or not observer.watching:
            return
        self._turn_to_pass_of(seen)
        row = observer.observe(target, gradient)
        if seen is not None and row is not None and has_place(gradient):
            seen.of_only_user = GradientRow(gradient, row)

    def _gradient_came(self, seen: SeenTensor, gradient: torch.Tensor | None) -> None:
        observer = self._gradients
        # An output of a compiled graph that the loss does not use has no gradient at all.
        if observer is None or not observer.watching or gradient is None:
            return
        began = perf_counter()
        self._turn_to_pass_of(seen)
        known, seen.of_only_user = seen.of_only_user, None
        targets = seen.targets
        if known is not None and known.is_of(gradient):
            row: int | None = known.row
        else:
            if self._waiting.is_open:
                self.backward_ended()
            self._waiting.place_gradients()  # those that came before come first
            row = observer.observe(targets[0], gradient, False, self._may_wait)
            self._waiting.learn_gradient(targets[0], observer.is_steady(targets[0]))
            targets = targets[1:]
        if row is not None:
            for target in targets:
                observer.add_row(target, row)
        observer.took(perf_counter() - began)

    def _turn_to_pass_of(self, seen: SeenTensor | None) -> None:
        if seen is not None and seen.micro_step is not None:
            self._clock.backward_began(seen.micro_step)

    def _value_in_graph(self, target: str, tensor: torch.Tensor) -> None:
        if not self.is_watching or not self._is_training() or hooks.current_backward() != -1:
            return
        self._passes[target] += 1
        if self._with_gradients and not releases.CAN_HOOK_IN_GRAPHS and not self._told_of_graphs:
            self._told_of_graphs = True
            log.warning("activation_gradient inside compiled graphs needs torch 2.13; only the others are recorded")
        if self._values is not None and self._values.watching:
            self._values.observe(target, tensor)

    def _gradient_in_graph(self, target: str, gradient: torch.Tensor) -> None:
        # A compiled layer that checkpointing recomputes hooks its input again: one pass, one gradient.
        if self._gradients is not None and self._gradients.watching and self._passes[target] > 0:
            self._passes[target] -= 1
            self._gradients.observe(target, gradient)


def _trace(module: torch.nn.Module, tensors: Iterable[tuple[str, torch.Tensor]], with_gradients: bool) -> None:
    """Observe from inside a compiled graph: the operators decide at run time whether the step is recorded."""
    slot = module.__dict__[_SLOT]
    for path, tensor in tensors:
        torch.ops.vario.observe(tensor, slot, path)
        if with_gradients and releases.CAN_HOOK_IN_GRAPHS and tensor.requires_grad:
            _trace_gradient(tensor, slot, path)


_attached: list[ModuleTensors] = []
"""Those with hooks on modules."""


def _is_watched() -> bool:
    """Whether any Monitor records this step: in most steps hooks need to know no more."""
    for tensors in _attached:  # noqa: SIM110 - half the time that `any` takes, hundreds of times a step
        if tensors.is_watching:
            return True
    return False


@module_hooks.module_hook
def _inputs(module: torch.nn.Module, args: Any, *kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        try:
            if not waits_as_input(module, args, kwargs) and _is_watched():
                module_hooks.tell(_inputs, module, args, *kwargs)
        except Exception as error:  # noqa: BLE001 - the failure policy
            last_guard.failed(error)
    elif releases.is_in_graph():
        _trace(module, inputs(torch.Tensor, args, *kwargs), with_gradients=False)


@module_hooks.module_hook
def _inputs_and_gradients(module: torch.nn.Module, args: Any, *kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        try:
            if not waits_as_input(module, args, kwargs) and _is_watched():
                module_hooks.tell(_inputs_and_gradients, module, args, *kwargs)
        except Exception as error:  # noqa: BLE001 - the failure policy
            last_guard.failed(error)
    elif releases.is_in_graph():
        _trace(module, inputs(torch.Tensor, args, *kwargs), with_gradients=True)


@module_hooks.module_hook
def _outputs(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
    if not torch.compiler.is_compiling():
        try:
            if not waits_as_output(module, output) and _is_watched():
                module_hooks.tell(_outputs, module, args, kwargs, output)
        except Exception as error:  # noqa: BLE001 - the failure policy
            last_guard.failed(error)
    elif releases.is_in_graph():
        _trace(module, leaves(torch.Tensor, output, "output"), with_gradients=False)


@module_hooks.module_hook
def _outputs_and_gradients(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
    if not torch.compiler.is_compiling():
        try:
            if not waits_as_output(module, output) and _is_watched():
                module_hooks.tell(_outputs_and_gradients, module, args, kwargs, output)
        except Exception as error:  # noqa: BLE001 - the failure policy
            last_guard.failed(error)
    elif releases.is_in_graph():
        _trace(module, leaves(torch.Tensor, output, "output"), with_gradients=True)


_HOOKS = {False: (_inputs, _outputs), True: (_inputs_and_gradients, _outputs_and_gradients)}
"""Hooks before and after a module, by whether gradients are wanted."""


def _trace_gradient(tensor: torch.Tensor, slot: torch.Tensor, path: str) -> None:
    tensor.register_hook(lambda gradient: torch.ops.vario.observe_gradient(gradient, slot, path))


def _forget(module: torch.nn.Module, slot: torch.Tensor) -> None:
    module.__dict__.pop(_SLOT, None)
    operators.free_slot(slot)
