"""The training loop in graph mode: a training cell runs forward, backward and update in one compiled call.

What happens inside is known from slots (`graph_slots`), which probes fill that were installed before compilation. A
loop that calls a compiled gradient function and then the optimizer shows its gradients between the two.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from mindspore import Tensor, nn

from vario.backends.mindspore import optimizers as states
from vario.backends.mindspore import taps
from vario.backends.mindspore.cells import has_construct
from vario.backends.mindspore.followed import FollowedCells, StepGradients
from vario.backends.mindspore.graph_slots import (
    GradientSlots,
    Reduced,
    SlotRows,
    Slots,
    Switch,
    names_in_short,
    output_gradient_probe,
    output_probe,
    reducer_probe,
    unchanged,
)
from vario.backends.mindspore.losses import found_loss, loss_value
from vario.backends.protocols.events import TRAINING_LOOP, Events
from vario.backends.protocols.losses import BackwardLoss
from vario.backends.protocols.observing import NamedTensors, Observer
from vario.core.records import ROOT

log = logging.getLogger("vario")

_EPS = 1e-8
_GRADIENTS = frozenset({"gradient", "gradient_local", "gradient_accumulated"})


class GraphLoop(FollowedCells):
    """Follows cells that are compiled."""

    engine_name = "graph"

    def __init__(self, models: Any, optimizers: Sequence[Any], selector: Any, scaler: Any) -> None:
        super().__init__(models, optimizers, selector, scaler)
        self.values: Observer | None = None
        self.cell_gradients: Observer | None = None
        self._slots = Slots()
        self._forward, self._backward, self._gradient = Switch("forward"), Switch("backward"), Switch("gradient")
        self._value_rows: dict[str, int] = {}
        self._gradient_rows: dict[str, int] = {}
        self._local: dict[int, GradientSlots] = {}
        """Per training cell, by its identity: its gradients before ranks reduce them."""
        self._reduced: dict[int, GradientSlots] = {}
        self._reducers: dict[int, tuple[Any, Any]] = {}
        self._applied: tuple[Sequence[Any], Sequence[Any]] | None = None
        self._is_inside = self._is_checked = self._is_attached = False
        self._is_split = False
        """Whether the loop calls the optimizer itself. Its gradients are then computed before it shows that the next
        step has begun, so the probes are left on."""

    # Installing probes

    def attach(self, events: Events) -> None:
        """Install probes, before anything is compiled, and start following the training loop."""
        self._events = events
        self._is_attached = True
        self._undos.append(self.targets.claim())
        for name, cell in self.targets.cells.items():
            if has_construct(cell):
                self._hook(name, cell)
        self._undos.append(taps.follow(taps.guarded(self, events, TRAINING_LOOP)))
        self.step_began()

    def _hook(self, name: str, cell: Any) -> None:
        if self.values is not None:
            slot, self._value_rows[name] = self._slots.add("value", self._forward)
            self._handles.append(cell.register_forward_hook(output_probe(slot, self._forward.parameter, _EPS)))
        if self.cell_gradients is not None:
            slot, self._gradient_rows[name] = self._slots.add("gradient", self._backward)
            probe = output_gradient_probe(slot, self._backward.parameter, _EPS)
            self._handles.append(cell.register_backward_pre_hook(probe))

    def _probe_reducer(self, cell: Any, optimizer: Any) -> None:
        """Put a probe around a training cell's reducer, before that cell is compiled."""
        if id(cell) in self._reducers or not isinstance(getattr(cell, "grad_reducer", None), nn.Cell):
            return
        inner = cell.grad_reducer
        self._reducers[id(cell)] = cell, inner
        self._local[id(cell)] = local = GradientSlots(self._slots, self._gradient, optimizer.parameters, "local")
        after, switch = unchanged, self._gradient.parameter
        self._reduced[id(cell)] = local
        if not isinstance(inner, nn.Identity):
            reduced = GradientSlots(self._slots, self._gradient, optimizer.parameters, "reduced")
            self._reduced[id(cell)], after = reduced, reduced.storing(switch)
        cell.grad_reducer = reducer_probe(local.storing(switch), after, inner)

    def detach(self) -> None:
        """Switch the probes off, for graphs that were compiled with them, and remove them from the cells."""
        self._is_attached = False
        for switch in (self._forward, self._backward, self._gradient):
            switch.set(None)
        for cell, inner in self._reducers.values():
            cell.grad_reducer = inner
        self._reducers.clear()
        super().detach()

    def step_began(self) -> None:
        """Switch on the probes that this step records."""
        if not self._is_attached or self._is_split:
            return
        step, watched = self.clock.step, self._events.frames.watched
        self._forward.set(step if self.values is not None and self.values.watching else None)
        self._backward.set(step if self.cell_gradients is not None and self.cell_gradients.watching else None)
        self._gradient.set(None if _GRADIENTS.isdisjoint(watched) else step)

    # Training cells

    def training_cell_called(self, cell: Any, inputs: tuple[Any, ...]) -> None:
        """Take the start of a step."""
        optimizer = self._own_optimizer(cell)
        if optimizer is None:
            return
        self._probe_reducer(cell, optimizer)
        self._begin_pass(inputs)
        self._is_inside = True
        numbers = self.targets.numbers_of(optimizer.parameters)
        self.clock.update_began(numbers, has_closure=True)
        for call in self._calls.update_called:
            call(optimizer)

    def training_cell_returned(self, cell: Any, outputs: Any) -> None:
        """Take all that the step did."""
        optimizer = self._own_optimizer(cell)
        if optimizer is None or not self._is_inside:
            return
        self._is_inside = False
        self._tell_of_loss(outputs)
        rows = self._slots.read()
        for call in self._calls.pass_ended:
            call(None)  # the output of the network stays inside the graph
        self._tell_of_cells(rows)
        self._push_gradients(rows, cell, optimizer)
        self._log_scale(cell, outputs)
        self._end_update(optimizer)
        self._check(rows)

    def _own_optimizer(self, cell: Any) -> Any:
        found = getattr(cell, "optimizer", None)
        is_own = found is not None and hasattr(found, "parameters") and self.targets.are_updated_by(found)
        return found if is_own else None

    def _begin_pass(self, inputs: tuple[Any, ...]) -> None:
        is_new = self.clock.awaits_pass
        if self.clock.forward_began():
            self._events.step_ended()
        self.clock.pass_began(ROOT)
        self._events.frames.begin_pass(is_new)
        for call in self._calls.pass_began:
            call(ROOT, (inputs, {}))

    def _tell_of_loss(self, outputs: Any) -> None:
        loss = found_loss(outputs)
        if loss is not None:
            for call in self._loss_calls:
                call(BackwardLoss(loss_value(loss, None), 1.0, 1, "added", True))

    def _tell_of_cells(self, rows: SlotRows) -> None:
        for observer, numbers in ((self.values, self._value_rows), (self.cell_gradients, self._gradient_rows)):
            if observer is not None and observer.watching:
                for name, number in numbers.items():
                    if (seen := Reduced(rows, number)).was_filled:
                        observer.observe(f"{name}:output", seen)

    def _push_gradients(self, rows: SlotRows, cell: Any, optimizer: Any) -> None:
        self.clock.gradients_came(self.targets.numbers_of(optimizer.parameters))
        is_on = self._gradient.stamp > 0 and id(cell) in self._reducers
        names, local = self._named(optimizer, self._local[id(cell)].found(rows) if is_on else [])
        for call in (*self._local_calls, *self._accumulated_calls):
            for name, seen in zip(names, local, strict=True):
                call(name, seen)
        names, reduced = self._named(optimizer, self._reduced[id(cell)].found(rows) if is_on else [])
        gradients = StepGradients(names, reduced, states.scale_inside(optimizer), self.replicas.is_left_to_others)
        for push in self._calls.backward_ended:
            push(gradients)

    def _named(self, optimizer: Any, tensors: list[Any]) -> tuple[list[str], list[Any]]:
        return self.targets.named(optimizer.parameters, tensors) if tensors else ([], [])

    def _log_scale(self, cell: Any, outputs: Any) -> None:
        """Log the loss scale, and whether it overflowed, as training cells with one return them."""
        if isinstance(outputs, tuple) and len(outputs) == 3 and hasattr(cell, "scale_sense"):
            self._events.log(skipped_step=outputs[1].astype("float32"), loss_scale=outputs[2])

    def _end_update(self, optimizer: Any) -> None:
        for call in (*self._calls.update_began, *self._calls.update_returned, *self._calls.update_ended):
            call(optimizer)
        self.clock.update_ended(self.targets.numbers_of(optimizer.parameters))
        self._events.frames.seal()
        if self.clock.is_complete:
            self._events.update_completed()

    def _check(self, rows: SlotRows) -> None:
        """After the first recorded step, name the probes that never ran."""
        is_on = self._forward.stamp > 0 or self._backward.stamp > 0 or self._gradient.stamp > 0
        if self._is_checked or not is_on:
            return
        self._is_checked = True
        missing = []
        for what, switch, numbers in (
            ("activation", self._forward, self._value_rows),
            ("activation_gradient", self._backward, self._gradient_rows),
        ):
            if switch.stamp > 0:
                missing += [f"{what} of {name}" for name, n in numbers.items() if not Reduced(rows, n).was_filled]
        if missing:
            log.warning(
                "no values came from these probes in the first step: %s. A cell that the step does not call has none. "
                "A cell that was compiled before vario.watch has none either: call vario.watch before the first step.",
                names_in_short(missing),
            )

    # Loops that call a compiled gradient function and the optimizer

    def update_began(self, optimizer: Any, gradients: Any) -> None:
        """Take the call of an optimizer from Python, and the gradients that it gets."""
        numbers = self.targets.numbers_of(optimizer.parameters)
        if not numbers or self._is_inside:
            return
        self._is_inside = True
        self._is_split = True
        found = gradients if isinstance(gradients, (tuple, list)) else (gradients,)
        rows = self._slots.read()
        if self.clock.gradients_came(numbers) or self.clock.update_began(numbers):
            self._events.step_ended()
        self._applied = optimizer.parameters, found
        self._tell_of_cells(rows)
        names, tensors = self.targets.named(*self._applied)
        scale = self.loss_scale() or states.scale_inside(optimizer)
        for push in self._calls.backward_ended:
            push(StepGradients(names, tensors, scale, self.replicas.is_left_to_others))
        self._check(rows)
        self.clock.update_began(numbers)
        for call in self._calls.update_called:
            call(optimizer)

    def update_ended(self, optimizer: Any, gradients: Any) -> None:
        """Take the end of that update."""
        if self._is_inside and self._applied is not None:
            self._is_inside = False
            self._end_update(optimizer)
            self._applied = None
            for switch in (self._forward, self._backward):
                switch.set(self.clock.step + 1)

    def updated_by_hand(self) -> None:
        """Take a step of a compiled function from the loop (`monitor.step()`)."""
        if not self.clock.has_update:
            self._tell_of_cells(self._slots.read())
            for call in (*self._calls.update_called, *self._calls.update_began, *self._calls.update_ended):
                call(None)

    def finish(self) -> bool:
        """Return False: an update that raised has observed nothing."""
        return False

    def applied_gradients(self, optimizer: Any) -> NamedTensors:
        """Return names and gradients that an optimizer is about to use, if Python sees them."""
        return ([], []) if self._applied is None else self.targets.named(*self._applied)

    def loss_scale(self) -> Any:
        """Return what the loop multiplies its loss by: training cells divide gradients by it inside the graph."""
        scale = self._scale_in_loss()
        return scale if isinstance(scale, Tensor) else None
