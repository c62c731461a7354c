"""The losses that backward is called on, and what the loop did to them just before."""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from vario.backends.protocols.events import Events, Undo
from vario.backends.protocols.loss_graphs import LossGraph
from vario.backends.protocols.losses import BackwardLoss, Compared, Gradients
from vario.backends.torch.loop import backward_passes
from vario.backends.torch.loop.accumulation import Accumulation
from vario.backends.torch.loop.light_steps import LightSteps
from vario.backends.torch.loop.loss_graphs import graph_of
from vario.backends.torch.loop.loss_targets import compared_by
from vario.backends.torch.loop.subscriptions import Subscriptions
from vario.backends.torch.loop.training_threads import Turns
from vario.backends.torch.reduce.async_copy import fetch_later
from vario.backends.torch.targets import Targets

log = logging.getLogger("vario")

_PART = "loss"
_MOST_EARLY = 64
"""The most backward passes kept while no model has been found: the micro-steps of one update."""
_DEPTH = 6
"""How many operations before backward are searched for a division."""
_UNDIVIDED = 1.0, 1
NOTHING_COMPARED = Compared()
_SUM = 2
"""Torch's internal value of `reduction="sum"`."""


class _Start(NamedTuple):
    """A backward pass that has started and reached no watched parameter yet."""

    outputs: Sequence[torch.Tensor]
    factors: Sequence[torch.Tensor | None]
    scale: torch.Tensor | None
    divisor: float
    num_items: int
    gradients: Gradients
    compared: Compared = NOTHING_COMPARED
    graph: LossGraph | None = None


class _Mark(NamedTuple):
    """The state of one parameter after a backward pass, by torch's version counter."""

    parameter: torch.Tensor
    weight: int
    gradient: int


class BackwardLosses:
    """Reports each backward pass that starts from plain numbers and reaches watched parameters."""

    def __init__(
        self,
        targets: Targets,
        accumulation: Accumulation,
        scale: Callable[[], torch.Tensor | None],
        calls: Subscriptions,
        turns: Turns,
        light: LightSteps,
    ) -> None:
        self._calls = calls
        self._parameters = targets.engine.names
        # A runtime that shards moves gradients itself between backward passes.
        self._keeps_gradients = targets.engine.name == "plain"
        self._accumulation = accumulation
        self._scale = scale
        self._turns = turns
        self._light = light
        self._start: _Start | None = None
        self._reached: torch.Tensor | None = None
        self._last: Callable[[], Any] = lambda: None
        self._mark: _Mark | None = None

    def attach(self, events: Events) -> Undo:
        """Start following."""
        self._reach = events.guarded(_PART, self._parameter_reached)
        return backward_passes.follow(events.guarded(_PART, self._began), events.guarded(_PART, self._ended))

    def _began(self, outputs: Sequence[Any], factors: Sequence[Any], inputs: Sequence[Any], accumulates: bool) -> None:
        if self._turns.is_elsewhere():
            return  # another model of the process runs backward, on its own thread
        if self._light.takes_backward(outputs, factors, inputs, accumulates):
            divided, gradients = _division(outputs[0], None), self._fate_of_gradients()
            self._start = _Start(outputs, factors, None, *divided, gradients, *self._read(outputs))
            return
        self._light.backward_came()
        self._start = self._reached = None
        if not outputs or not all(_is_number(output) for output in outputs):
            return  # tensors with given gradients: a stage of a pipeline, a loop that runs backward part by part
        gradients = self._fate_of_gradients() if accumulates else "added"
        if accumulates and self._last() is outputs[0] and gradients == "added":
            return  # again through the same graph: still one loss
        scale = self._scale()
        divided = _division(outputs[0], scale) if len(outputs) == 1 else _UNDIVIDED
        self._start = _Start(outputs, factors, scale, *divided, gradients, *self._read(outputs))
        if accumulates:
            self._accumulation.first_reached = self._reach
        elif any(id(tensor) in self._parameters for tensor in inputs):
            self._tell_of(self._start, is_kept=False)

    def _parameter_reached(self, parameter: torch.Tensor) -> None:
        if self._start is not None:
            self._reached = parameter
            self._tell_of(self._start, is_kept=True)

    def _tell_of(self, start: _Start, is_kept: bool) -> None:
        value = self._with_rows(start) or _value(start)
        if value is not None:
            self._calls.tell_of_loss(BackwardLoss(value, start.divisor, start.num_items, start.gradients, is_kept))
        if start.compared.targets or start.compared.misuses:
            self._calls.targets_came(start.compared)
        if start.graph is not None:
            self._calls.graph_came(start.graph)

    def _read(self, outputs: Sequence[torch.Tensor]) -> tuple[Compared, LossGraph | None]:
        """Read from the graph of a loss what it compares with, and what it was computed by, as far as that is due."""
        if len(outputs) != 1:
            return NOTHING_COMPARED, None
        compared = compared_by(outputs[0]) if self._calls.may_sample_targets() else NOTHING_COMPARED
        return compared, graph_of(outputs[0], self._parameters) if self._calls.may_read_graph() else None

    def _with_rows(self, start: _Start) -> Callable[[], float] | None:
        if len(start.outputs) != 1 or start.scale is not None:
            return None
        (output,), (factor,) = start.outputs, start.factors
        is_plain = type(output) is torch.Tensor and (factor is None or type(factor) is torch.Tensor)
        return self._calls.number_with_rows(output, factor) if is_plain else None

    def _ended(self, has_failed: bool) -> None:
        if self._turns.is_elsewhere():
            return
        if self._light.is_in_backward:
            start, self._start = self._start, None
            if self._light.ends_backward(has_failed) and start is not None:
                self._tell_of(start, is_kept=True)
                self._note(start, self._light.first_reached)
            return
        start, reached = self._start, self._reached
        self._start = self._reached = self._accumulation.first_reached = None
        if start is not None and reached is not None:
            self._note(start, reached)

    def _note(self, start: _Start, reached: torch.Tensor | None) -> None:
        """Note what the next backward pass is compared with."""
        self._last = weakref.ref(start.outputs[0]) if len(start.outputs) == 1 else lambda: None
        self._mark = None
        if reached is not None and self._keeps_gradients and reached.grad is not None:
            self._mark = _Mark(reached, reached._version, reached.grad._version)

    def _fate_of_gradients(self) -> Gradients:
        """Return what happened to the gradients of the last backward pass."""
        mark = self._mark
        if mark is None:
            return "added"
        gradient = mark.parameter.grad
        if gradient is not None and gradient._version == mark.gradient:
            return "added"
        return "anew" if mark.parameter._version == mark.weight else "elsewhere"


class EarlyLosses:
    """Losses of backward passes before a model is found, so that a model found at its update has a loss too."""

    def __init__(self) -> None:
        self._kept: dict[int, deque[BackwardLoss]] = {}
        """The latest, by thread."""
        self._undo: Undo | None = None

    def attach(self) -> None:
        """Start keeping them."""
        self._undo = self._undo or backward_passes.follow(self._began, lambda has_failed: None)

    def detach(self) -> None:
        """Stop keeping more."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def take(self) -> list[BackwardLoss]:
        """Return the losses of this thread and forget them."""
        return list(self._kept.pop(threading.get_ident(), ()))

    def _began(self, outputs: Sequence[Any], factors: Sequence[Any], inputs: Sequence[Any], accumulates: bool) -> None:
        is_of_weights = accumulates or any(isinstance(tensor, torch.nn.Parameter) for tensor in inputs)
        if not outputs or not is_of_weights or not all(_is_number(output) for output in outputs):
            return
        try:
            divided = _division(outputs[0], None) if len(outputs) == 1 else _UNDIVIDED
            value = _value(_Start(outputs, factors, None, *divided, "added"))
        except Exception as error:  # noqa: BLE001 - the failure policy: backward is the training's own
            log.debug("the loss of a model that is not watched yet cannot be read: %s", error)
            return
        if value is not None:
            kept = self._kept.setdefault(threading.get_ident(), deque(maxlen=_MOST_EARLY))
            kept.append(BackwardLoss(value, *divided, "added", accumulates))


def _is_number(output: Any) -> bool:
    return isinstance(output, torch.Tensor) and output.numel() == 1 and output.is_floating_point()


def _value(start: _Start) -> Callable[[], float] | None:
    """Return the loss that backward was called on, being copied to the host; None if this rank has only a part."""
    terms = [
        (_whole(output), None if factor is None else _whole(factor))
        for output, factor in zip(start.outputs, start.factors, strict=True)
    ]
    if any(tensor is None for tensor, _ in terms):
        return None
    if all(tensor.is_cpu for tensor, _ in terms):
        number = sum(tensor.item() if factor is None else tensor.item() * factor.item() for tensor, factor in terms)
        number = number if start.scale is None else number / float(start.scale)
        return lambda: number
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return None
    with torch.no_grad():
        values = (tensor.float() if factor is None else tensor.float() * factor for tensor, factor in terms)
        total = sum(value.reshape(()) for value in values)
        fetch = fetch_later(total if start.scale is None else total / start.scale)
    return lambda: float(fetch())


def _whole(tensor: Any) -> Any:
    """Return a tensor that is equal on all ranks as a plain one; None if it is sharded."""
    if type(tensor) is torch.Tensor or not hasattr(tensor, "to_local"):
        return tensor
    return tensor.to_local() if all(placement.is_replicate() for placement in tensor.placements) else None


def _division(loss: torch.Tensor, scale: torch.Tensor | None) -> tuple[float, int]:
    """Return the product of the plain numbers a loss was divided by last, and how many elements were summed before.

    This is how a loop with gradient accumulation averages. A number in a program is a host tensor in the graph, so
    reading it does not wait for a device.
    """
    divisor, node = 1.0, loss.grad_fn
    try:
        for _ in range(_DEPTH):
            kind = None if node is None else node.name()
            if kind not in ("DivBackward0", "MulBackward0"):
                break
            saved: Any = node
            side = 1 if saved._saved_other is None else 0
            factor = saved._saved_self if side else saved._saved_other
            number = factor.item() if factor.is_cpu and factor.numel() == 1 else None
            if kind == "MulBackward0" and scale is not None and _may_be(scale, number):
                scale = None  # it occurs once
            elif number is None or (side and kind == "DivBackward0"):
                break
            else:
                divisor = divisor * number if kind == "DivBackward0" else divisor / number
            node = saved.next_functions[side][0]
        if not divisor or not math.isfinite(divisor):
            return _UNDIVIDED  # a loss that was made infinite or zero on purpose
        return divisor, 1 if divisor == 1 else _num_items(node)
    except (RuntimeError, AttributeError, ZeroDivisionError):
        return _UNDIVIDED  # nothing saved for backward can be read here


def _num_items(node: Any) -> int:
    """Return how many elements a sum, or a loss function with `reduction="sum"`, adds up; 1 for anything else.

    From shapes only: reading what a checkpoint saved for backward would recompute it.
    """
    if node is None:
        return 1
    if node.name() == "SumBackward0":
        return int(max(1, math.prod(node._saved_self_sym_sizes)))
    if getattr(node, "_saved_reduction", None) != _SUM:
        return 1
    before, nth = node.next_functions[0]
    shape = before._input_metadata[nth].shape
    num_classes = shape[1] if node.name().startswith("NllLoss") else 1
    return int(max(1, math.prod(shape) // num_classes))


def _may_be(scale: torch.Tensor, number: float | None) -> bool:
    """Whether a factor is the loss scale, if that can be determined without waiting for a device."""
    return number == scale.item() if scale.is_cpu else number is None
