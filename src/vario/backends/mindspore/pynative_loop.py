"""The training loop in PyNative mode: which step it is, and what the loop does.

A loop computes gradients with a function (`value_and_grad`, `GradOperation`), may sum, reduce and clip them, and calls
the optimizer with them. What backward returned is the gradient of one pass. What ranks reduced, or the loop summed over
several passes, is the gradient of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindspore import Tensor

from vario.backends.mindspore import optimizers as states
from vario.backends.mindspore import taps
from vario.backends.mindspore.cells import CellTensors
from vario.backends.mindspore.followed import FollowedCells, StepGradients
from vario.backends.mindspore.losses import found_loss, loss_value
from vario.backends.mindspore.module_internals import InsideCells
from vario.backends.mindspore.tensors import size
from vario.backends.protocols.events import TRAINING_LOOP, Events
from vario.backends.protocols.losses import BackwardLoss
from vario.backends.protocols.observing import NamedTensors
from vario.core.records import ROOT


class PyNativeLoop(FollowedCells):
    """Follows cells that run operation by operation."""

    engine_name = "pynative"

    def __init__(self, models: Any, optimizers: Sequence[Any], selector: Any, scaler: Any) -> None:
        super().__init__(models, optimizers, selector, scaler)
        self.cell_tensors = CellTensors(self.targets.cells, self.targets.roots.values())
        self.inside = InsideCells(self.targets)
        self._passes: list[tuple[Sequence[Any], Sequence[Any]]] = []
        """Per backward pass since the last update: the parameters, and what it returned."""
        self._reduced: tuple[Sequence[Any], Sequence[Any]] | None = None
        self._comes_late = False
        """Whether the last update's gradients were not those of a single backward pass: the next ones will not be."""
        self._applied: tuple[Sequence[Any], Sequence[Any]] | None = None
        self._outputs: Any = None
        self._is_updating = self._is_attached = False

    # Following

    def attach(self, events: Events) -> None:
        """Start following the training loop."""
        self._events = events
        self._undos.append(self.targets.claim())
        for prefix, root in self.targets.roots.items():
            name = prefix + ROOT
            before = events.guarded(TRAINING_LOOP, lambda args, kwargs, name=name: self._pass_began(name, args, kwargs))
            after = events.guarded(TRAINING_LOOP, self._pass_ended)
            self._handles.append(
                root.register_forward_pre_hook(
                    lambda cell, args, kwargs, call=before: call(args, kwargs), with_kwargs=True
                )
            )
            self._handles.append(root.register_forward_hook(lambda cell, args, output, call=after: call(output)))
        self._undos.append(taps.follow(taps.guarded(self, events, TRAINING_LOOP)))
        self._undos.append(self.inside.attach())
        self._is_attached = True
        self.step_began()

    def detach(self) -> None:
        """Leave the cells and MindSpore as they were."""
        self._is_attached = False
        self.cell_tensors.clear()
        super().detach()

    def step_began(self) -> None:
        """Hook the cells if the step that begins records their tensors."""
        if self._is_attached:
            self.cell_tensors.step_began()

    def _end_step(self) -> None:
        self.cell_tensors.step_ended()
        self._events.step_ended()

    # Passes

    def _pass_began(self, root: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not taps.is_recording() or self.cell_tensors.is_in_backward:
            return
        self._forget_failed_update()
        is_new = self.clock.awaits_pass
        if self.clock.forward_began():
            self._end_step()
        self.clock.pass_began(root)
        self._events.frames.begin_pass(is_new)
        for call in self._calls.pass_began:
            call(root, (args, kwargs))
        self.cell_tensors.root_called(root, args, kwargs)

    def _pass_ended(self, output: Any) -> None:
        if taps.is_recording() and not self.cell_tensors.is_in_backward:
            for call in self._calls.pass_ended:
                call(output)

    def outputs_came(self, computed: Any, outputs: Any) -> None:
        """Take what a function or cell returned whose gradients will be computed: its loss."""
        self._outputs = outputs

    def backward_began(self, weights: Any, sense: Any) -> None:
        """Take the start of a gradient computation."""
        if not self.targets.numbers_of(_as_list(weights)):
            return
        self.cell_tensors.is_in_backward = True
        self._sense = sense if isinstance(sense, Tensor) else None
        for call in self._calls.backward_began:
            call()

    def backward_failed(self, weights: Any) -> None:
        """Forget a pass whose backward raised."""
        if not self.targets.numbers_of(_as_list(weights)):
            return
        self.cell_tensors.is_in_backward = False
        self.clock.backward_failed()
        self._events.frames.forget_micro_step()
        for call in self._calls.backward_failed:
            call()

    def backward_ended(self, weights: Any, gradients: Any) -> None:
        """Take the gradients of one pass."""
        parameters = _as_list(weights)
        numbers = self.targets.numbers_of(parameters)
        if not numbers:
            return
        self.cell_tensors.is_in_backward = False
        if self.clock.gradients_came(numbers):
            self._end_step()
        for computed in self._calls.gradients_computed:
            computed()
        self._tell_of_loss()
        found = parameters, _as_list(gradients)
        self._passes.append(found)
        names, tensors = self.targets.named(*found)
        for call in self._local_calls:
            for name, tensor in zip(names, tensors, strict=True):
                call(name, tensor)
        if len(self._passes) == 1 and not self._comes_late:
            self._push(found, self.loss_scale())

    def _tell_of_loss(self) -> None:
        loss, self._outputs = found_loss(self._outputs), None
        if loss is None:
            return
        value = loss_value(loss, self._scale_in_loss())
        for call in self._loss_calls:
            call(BackwardLoss(value, 1.0, 1, "added", True))

    def _push(self, found: tuple[Sequence[Any], Sequence[Any]], scale: Any) -> None:
        names, tensors = self.targets.named(*found)
        gradients = StepGradients(names, tensors, scale, self.replicas.is_left_to_others)
        for call in self._calls.backward_ended:
            call(gradients)

    def reduced(self, before: Any, after: Any) -> None:
        """Take gradients that ranks have reduced."""
        if not self._passes or len(_as_list(after)) != len(self._passes[-1][0]):
            return
        parameters = self._passes[-1][0]
        self._reduced = parameters, _as_list(after)
        self._tell_of_accumulated(parameters, _as_list(before))

    def _tell_of_accumulated(self, parameters: Sequence[Any], gradients: Sequence[Any]) -> None:
        names, tensors = self.targets.named(parameters, gradients)
        for call in self._accumulated_calls:
            for name, tensor in zip(names, tensors, strict=True):
                call(name, tensor)

    # Updates

    def update_began(self, optimizer: Any, gradients: Any) -> None:
        """Take the call of an optimizer and the gradients that it gets."""
        numbers = self.targets.numbers_of(optimizer.parameters)
        if not numbers or self._is_updating:
            return
        self._is_updating = True
        if self.clock.update_began(numbers):
            self._end_step()
        self._applied = optimizer.parameters, _as_list(gradients)
        self._push_late(optimizer)
        scale = self.loss_scale()
        if scale is not None and size(scale) == 1:
            self._events.log(loss_scale=scale)
        for call in (*self._calls.update_called, *self._calls.update_began):
            call(optimizer)

    def _push_late(self, optimizer: Any) -> None:
        """Push the gradients of the step if they are not those of its only backward pass."""
        assert self._applied is not None
        is_plain = len(self._passes) == 1 and self._reduced is None
        if self._reduced is None:
            self._tell_of_accumulated(*(self._passes[0] if is_plain else self._applied))
        if self._reduced is not None and len(self._passes) == 1:
            self._push(self._reduced, states.scale_inside(optimizer))
        elif not is_plain:
            self._push(self._applied, states.scale_inside(optimizer))
        elif self._comes_late:
            self._push(self._passes[0], self.loss_scale())
        self._comes_late = not is_plain

    def update_ended(self, optimizer: Any, gradients: Any) -> None:
        """Take the end of an update."""
        numbers = self.targets.numbers_of(optimizer.parameters)
        if not numbers or not self._is_updating:
            return
        self._is_updating = False
        self._passes, self._reduced = [], None
        for call in (*self._calls.update_returned, *self._calls.update_ended):
            call(optimizer)
        self.clock.update_ended(numbers)
        self._events.frames.seal()
        self._applied = None
        if self.clock.is_complete:
            self._events.update_completed()

    def training_cell_returned(self, cell: Any, outputs: Any) -> None:
        """Take the end of a training cell; one with a loss scale may have skipped its update."""
        optimizer = getattr(cell, "optimizer", None)
        if optimizer is None or not hasattr(optimizer, "parameters") or not self.targets.are_updated_by(optimizer):
            return
        was_skipped = bool(self._passes)
        if was_skipped:
            self.update_began(optimizer, self._passes[-1][1])
            self.update_ended(optimizer, ())
        if was_skipped or getattr(cell, "loss_scaling_manager", None) is not None:
            self._events.log(skipped_step=float(was_skipped))

    def _forget_failed_update(self) -> None:
        if self.clock.update_failed:
            self._is_updating, self._passes, self._reduced = False, [], None
            self.clock.drop_update()
            self._events.frames.forget_update()

    def updated_by_hand(self) -> None:
        """Take an update that the loop reports; it has changed the weights itself."""
        if not self.clock.has_update:
            self._passes, self._reduced = [], None
            for call in (*self._calls.update_called, *self._calls.update_began, *self._calls.update_ended):
                call(None)

    def finish(self) -> bool:
        """Return whether an update began and did not end."""
        return self.clock.update_failed

    def applied_gradients(self, optimizer: Any) -> NamedTensors:
        """Return names and gradients that an optimizer is about to use."""
        return ([], []) if self._applied is None else self.targets.named(*self._applied)

    def gradients_so_far(self) -> NamedTensors:
        """Return names and gradients of this step before its update: reduced, or of its only backward pass."""
        found = self._reduced or (self._passes[0] if len(self._passes) == 1 else None)
        return ([], []) if found is None else self.targets.named(*found)


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)
