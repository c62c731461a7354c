"""Inputs and outputs of modules and the gradients that flow through them, in eager code and in compiled graphs."""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from vario.backends.base import Observer, Undo
from vario.backends.torch import releases
from vario.backends.torch.loop import hooks, module_hooks, operators
from vario.backends.torch.loop.training_threads import Turns
from vario.backends.torch.modules.input_gradients import Graph, Passage
from vario.backends.torch.reduce.tensors import inputs, leaves
from vario.core.clock import Clock

log = logging.getLogger("vario")

_SLOT = f"{module_hooks.ATTRIBUTE}slot"

_guards_before: list[bool] = []
"""One per Monitor that needs dynamo's hook guards; the last to go puts back what the first one found."""


class SeenTensor:
    """One tensor at one version, under every name it was seen by: it is reduced once."""

    __slots__ = ("gradient_hooked", "micro_step", "of_only_user", "reference", "row", "targets", "version")

    def __init__(self, tensor: torch.Tensor, micro_step: int | None) -> None:
        self.micro_step = micro_step
        """The forward pass it belongs to; none for a leaf, which all of them may use."""
        self.reference = weakref.ref(tensor)
        self.version = 0 if tensor.is_inference() else tensor._version
        self.row: int | None = None
        self.gradient_hooked = False
        self.of_only_user: _GradientRow | None = None
        """The gradient that came back through one module that uses this tensor."""
        self.targets: list[str] = []

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Whether this is that very tensor, unchanged since: an address alone would be reused."""
        # Inference tensors do not count their versions, so each call may show another one.
        return self.reference() is tensor and not tensor.is_inference() and self.version == tensor._version


class _GradientRow:
    """The row of a gradient, for as long as that gradient is unchanged in memory."""

    def __init__(self, gradient: torch.Tensor, row: int) -> None:
        self.row = row
        self._storage = StorageWeakRef(gradient.untyped_storage())
        self._place = gradient.data_ptr(), gradient.shape, gradient.stride(), gradient._version

    def is_of(self, gradient: torch.Tensor) -> bool:
        """Whether this is that very gradient: memory that was freed in between may hold another one."""
        if self._storage.expired() or not _has_place(gradient):
            return False
        return self._place == (gradient.data_ptr(), gradient.shape, gradient.stride(), gradient._version)


def _has_place(gradient: torch.Tensor) -> bool:
    """Whether a gradient lies in memory of its own as a plain block of numbers."""
    return type(gradient) is torch.Tensor and gradient.layout is torch.strided and not gradient.is_nested


class ModuleTensors:
    """Hands the tensors that modules take and return to the observers of two quantities."""

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
        self._seen_tensors: dict[int, SeenTensor] = {}
        self._leaves: dict[int, tuple[SeenTensor, Undo]] = {}
        """Inputs that nothing computed: they outlive a pass, so one hook serves all passes of a step."""
        self._graph = Graph()
        self._passages: list[tuple[str, Passage]] = []
        """Calls of modules that have not returned, by the module's name."""
        self._told_of_graphs = False
        self._inside_root: bool | None = None
        self._passes: Counter[str] = Counter()
        """Per target in a compiled graph: forward passes of this step whose gradient has not come yet."""

    def attach(self, modules: Mapping[str, torch.nn.Module]) -> Undo:
        """Hook these modules, ready for torch.compile before or after."""
        undos = hooks.Undos()
        undos.add(guard_hooks_in_dynamo())
        operators.define()
        _attached.append(self)
        undos.add(lambda: _attached.remove(self))
        for name, module in modules.items():
            slot = operators.new_slot(
                lambda path, tensor, name=name: self._value_in_graph(f"{name}:{path}", tensor),  # type: ignore[misc]
                lambda path, tensor, name=name: self._gradient_in_graph(f"{name}:{path}", tensor),  # type: ignore[misc]
            )
            # A tensor attribute on the module is what compiled code can share between layers without recompiling.
            module.__dict__[_SLOT] = slot
            undos.add(lambda module=module, slot=slot: _forget(module, slot))  # type: ignore[misc]
            # Inputs are read before the call: an in-place module overwrites them.
            before, after = _HOOKS[self._with_gradients]
            undos.add(module_hooks.before_forward(module, self._before(name), before))
            undos.add(module_hooks.after_forward(module, self._after(name), after))
        undos.add(self.forget)
        return undos

    def forward_began(self, with_gradients: bool) -> None:
        """The outermost module is called; what it runs counts as training if gradients are on here."""
        self._inside_root = with_gradients
        self._seen_tensors.clear()
        self._passages.clear()
        self._graph.clear()
        for key in [key for key, (seen, _) in self._leaves.items() if seen.reference() is None]:
            del self._leaves[key]

    def forward_ended(self) -> None:
        """The outermost module has returned."""
        self._inside_root = None
        self._graph.clear()

    def step_ended(self) -> None:
        """A new step begins."""
        self._passes.clear()
        self.forget()

    def forget(self) -> None:
        """Drop what was seen in the step before."""
        self._seen_tensors.clear()
        self._passages.clear()
        self._graph.clear()
        for _, undo in self._leaves.values():
            undo()
        self._leaves.clear()

    def _before(self, name: str) -> Callable[..., None]:
        def before_forward(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if not self._is_training():
                return
            self._look(name, inputs(args, kwargs), with_gradients=not self._separates)
            if self._separates:
                self._enter(name, args, kwargs)

        return before_forward

    def _enter(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note where the gradients of these inputs will go, before the module may overwrite them."""
        if self._gradients is None or not self._gradients.watching or not torch.is_grad_enabled():
            return
        try:
            self._passages.append((name, Passage(self._graph, args, kwargs)))
        except Exception as error:  # noqa: BLE001 - the failure policy
            self._gradients.failed(error)

    def _leave(self, name: str, output: Any) -> None:
        """Follow the gradients of the inputs of the call that ends; calls inside it that raised are forgotten."""
        while self._passages:
            entered, passage = self._passages.pop()
            if entered == name:
                assert self._gradients is not None
                passage.follow(output, partial(self._through, name), self._gradients.failed)
                return

    def _through(self, name: str, path: str, tensor: torch.Tensor) -> Callable[[torch.Tensor], None]:
        seen = self._seen_tensors.get(id(tensor))
        return lambda gradient: self._came_through(f"{name}:{path}", seen, gradient)

    def _after(self, name: str) -> Callable[..., None]:
        def after_forward(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if self._is_training():
                self._look(name, leaves(output, "output"))
                self._leave(name, output)

        return after_forward

    @property
    def is_watching(self) -> bool:
        """Whether this step is watched."""
        values, gradients = self._values, self._gradients
        return (values is not None and values.watching) or (gradients is not None and gradients.watching)

    def _is_training(self) -> bool:
        if not self.is_watching or not self._turns.takes_part():
            return False
        # Reentrant checkpointing runs its first forward without gradients: what counts is how the root was called.
        return torch.is_grad_enabled() if self._inside_root is None else self._inside_root

    def _look(self, name: str, tensors: Iterable[tuple[str, torch.Tensor]], with_gradients: bool = True) -> None:
        try:
            for path, tensor in tensors:
                self._see(f"{name}:{path}", tensor, with_gradients)
        except Exception as error:  # noqa: BLE001 - the failure policy: a container may raise anything when opened
            for observer in (self._values, self._gradients):
                if observer is not None:
                    observer.failed(error)

    def _see(self, target: str, tensor: torch.Tensor, with_gradients: bool) -> None:
        seen = self._seen_tensors.get(id(tensor))
        if seen is None or not seen.is_of(tensor):
            seen = self._seen_tensors[id(tensor)] = SeenTensor(tensor, self._clock.micro_step)
        values, gradients = self._values, self._gradients
        # Inside backward a forward is a recomputation for checkpointing: its values were seen before.
        recomputing = hooks.current_backward() != -1
        if values is not None and values.watching and not recomputing:
            if seen.row is None:
                seen.row = values.observe(target, tensor)
            else:
                values.observe_again(target, seen.row)
        if gradients is None or not gradients.watching or not with_gradients:
            return
        if tensor.requires_grad and target not in seen.targets:
            if tensor.grad_fn is None:
                # Reentrant checkpointing recomputes from a detached copy of its input; the input itself has our hook.
                if not recomputing:
                    self._see_leaf(target, tensor)
                return
            seen.targets.append(target)
            if not seen.gradient_hooked:
                seen.gradient_hooked = True
                hooks.on_gradient(tensor, lambda gradient: self._gradient_came(seen, gradient))

    def _see_leaf(self, target: str, tensor: torch.Tensor) -> None:
        known = self._leaves.get(id(tensor))
        if known is None or known[0].reference() is not tensor:
            seen = SeenTensor(tensor, None)
            undo = hooks.on_gradient(tensor, lambda gradient: self._gradient_came(seen, gradient))
            known = self._leaves[id(tensor)] = seen, undo
        if target not in known[0].targets:
            known[0].targets.append(target)

    def _came_through(self, target: str, seen: SeenTensor | None, gradient: torch.Tensor) -> None:
        """A gradient came back through one module; where that is the tensor's only user it is the tensor's as well."""
        observer = self._gradients
        if observer is None or not observer.watching:
            return
        self._turn_to_pass_of(seen)
        row = observer.observe(target, gradient)
        if seen is not None and row is not None and _has_place(gradient):
            seen.of_only_user = _GradientRow(gradient, row)

    def _gradient_came(self, seen: SeenTensor, gradient: torch.Tensor | None) -> None:
        observer = self._gradients
        # An output of a compiled graph that the loss does not use has no gradient at all.
        if observer is None or not observer.watching or gradient is None:
            return
        self._turn_to_pass_of(seen)
        known, seen.of_only_user = seen.of_only_user, None
        targets = seen.targets
        if known is not None and known.is_of(gradient):
            row: int | None = known.row
        else:
            row, targets = observer.observe(targets[0], gradient), targets[1:]
        if row is not None:
            for target in targets:
                observer.observe_again(target, row)

    def _turn_to_pass_of(self, seen: SeenTensor | None) -> None:
        if seen is not None and seen.micro_step is not None:
            self._clock.backward_began(seen.micro_step)

    def _value_in_graph(self, target: str, tensor: torch.Tensor) -> None:
        if not self._is_training() or hooks.current_backward() != -1:
            return
        self._passes[target] += 1
        if self._with_gradients and not releases.CAN_HOOK_IN_GRAPHS and not self._told_of_graphs:
            self._told_of_graphs = True
            log.warning("activation_gradient inside compiled graphs needs torch 2.13; only those outside are recorded")
        if self._values is not None and self._values.watching:
            self._values.observe(target, tensor)

    def _gradient_in_graph(self, target: str, gradient: torch.Tensor) -> None:
        # A compiled layer that checkpointing recomputes hooks its input again: one pass, one gradient.
        if self._gradients is not None and self._gradients.watching and self._passes[target] > 0:
            self._passes[target] -= 1
            self._gradients.observe(target, gradient)


def _trace(module: torch.nn.Module, tensors: Iterable[tuple[str, torch.Tensor]], with_gradients: bool) -> None:
    """The same from inside a compiled graph: the operators decide at run time whether the step is watched."""
    slot = module.__dict__[_SLOT]
    for path, tensor in tensors:
        torch.ops.vario.observe(tensor, slot, path)
        if with_gradients and releases.CAN_HOOK_IN_GRAPHS and tensor.requires_grad:
            _trace_gradient(tensor, slot, path)


_attached: list[ModuleTensors] = []
"""Those whose hooks are on modules."""


def _is_watched() -> bool:
    """Whether anybody watches this step: of most steps hooks need to know no more."""
    for tensors in _attached:  # noqa: SIM110 - half the time that `any` takes, hundreds of times a step
        if tensors.is_watching:
            return True
    return False


@module_hooks.module_hook
def _inputs(module: torch.nn.Module, args: Any, *kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        if _is_watched():
            module_hooks.tell(_inputs, module, args, *kwargs)
    elif releases.is_in_graph():
        _trace(module, inputs(args, *kwargs), with_gradients=False)


@module_hooks.module_hook
def _inputs_and_gradients(module: torch.nn.Module, args: Any, *kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        if _is_watched():
            module_hooks.tell(_inputs_and_gradients, module, args, *kwargs)
    elif releases.is_in_graph():
        _trace(module, inputs(args, *kwargs), with_gradients=True)


@module_hooks.module_hook
def _outputs(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
    if not torch.compiler.is_compiling():
        if _is_watched():
            module_hooks.tell(_outputs, module, args, kwargs, output)
    elif releases.is_in_graph():
        _trace(module, leaves(output, "output"), with_gradients=False)


@module_hooks.module_hook
def _outputs_and_gradients(module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
    if not torch.compiler.is_compiling():
        if _is_watched():
            module_hooks.tell(_outputs_and_gradients, module, args, kwargs, output)
    elif releases.is_in_graph():
        _trace(module, leaves(output, "output"), with_gradients=True)


_HOOKS = {False: (_inputs, _outputs), True: (_inputs_and_gradients, _outputs_and_gradients)}
"""Before and after a module, by whether gradients are wanted."""


def _trace_gradient(tensor: torch.Tensor, slot: torch.Tensor, path: str) -> None:
    tensor.register_hook(lambda gradient: torch.ops.vario.observe_gradient(gradient, slot, path))


def _forget(module: torch.nn.Module, slot: torch.Tensor) -> None:
    module.__dict__.pop(_SLOT, None)
    operators.free_slot(slot)


def guard_hooks_in_dynamo() -> Undo:
    """Make torch.compile notice our hooks: by default it drops those that one of two twin modules lacks."""
    import torch._dynamo as dynamo
    from torch._dynamo.utils import counters

    _guards_before.append(dynamo.config.skip_nnmodule_hook_guards)
    dynamo.config.skip_nnmodule_hook_guards = False
    if counters["stats"].get("unique_graphs"):
        log.info("graphs compiled before watching began are compiled again, now with hooks")
        dynamo.reset()

    def undo() -> None:
        found = _guards_before.pop()
        if not _guards_before:
            dynamo.config.skip_nnmodule_hook_guards = found

    return undo
