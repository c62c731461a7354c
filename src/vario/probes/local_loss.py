"""The loss of this rank, found without logging by the script."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.capabilities import Losses
from vario.backends.protocols.events import Inputs
from vario.backends.protocols.losses import BackwardLoss
from vario.backends.protocols.observing import Later
from vario.core.quantities import LOSS_BACKWARD, LOSS_LOCAL
from vario.probes import Needs, Recorder

_SHARED_COUNT = "num_items_in_batch"
"""A transformers model called with it divides its loss by the items of the whole step."""
_ALMOST = 1e-3
_PADDED = 1.5
"""Two micro-steps that are each averaged over their own items have shares of at least 2."""


@dataclass
class _Objective:
    """The losses whose gradients one update uses."""

    added: list[BackwardLoss] = field(default_factory=list)
    handed: list[BackwardLoss] = field(default_factory=list)
    """Losses whose gradients were returned to the loop instead; they count only if there are no others."""
    num_passes: int = 0
    optimizers: list[Any] = field(default_factory=list)
    is_settled: bool = False
    """Whether further losses are the same loss at moved weights, as in a line search."""

    @property
    def losses(self) -> list[BackwardLoss]:
        return self.added or self.handed


class LocalLoss:
    """`loss_local` if the model returns its loss, otherwise `loss_backward`: what backward was called on in this step.

    Several backward passes before one update are averaged as the loop averages them. If several optimizers update
    different parts, each part has its own: `loss_backward/generator`.
    """

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = (Losses,)

    def __init__(self) -> None:
        self._objectives: list[_Objective] = []
        self._open: _Objective | None = None
        self._early: list[Any] = []
        self._returned: list[Later] = []
        self._is_returned = False
        self._goes_back = False
        self._sees_passes = False
        self._has_new_pass = False
        self._is_updating = False
        self._adds_up = False
        """Whether the losses of a step's passes are shares of one loss."""
        self._most_passes = 1

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to passes, to backward and to updates."""
        self._losses = losses = needed(backend, Losses)
        self._recorder = recorder
        backend.on_pass_began(recorder.guarded(LOSS_LOCAL, self._pass_began), even_light=True)
        backend.on_pass_ended(recorder.guarded(LOSS_LOCAL, self._pass_ended))
        losses.on_backward_loss(recorder.guarded(LOSS_LOCAL, self._backward_reached))
        backend.on_update_called(recorder.guarded(LOSS_LOCAL, self._update_called))
        backend.on_update_ended(recorder.guarded(LOSS_LOCAL, self._update_ended), even_light=True)
        recorder.on_step_ended(recorder.guarded(LOSS_LOCAL, self._step_ended))

    def _pass_began(self, root: str, inputs: Inputs) -> None:
        self._sees_passes = self._has_new_pass = True
        self._adds_up = self._adds_up or inputs[1].get(_SHARED_COUNT) is not None

    def _pass_ended(self, output: Any) -> None:
        if self._is_returned and self._goes_back:
            return  # backward has all of it
        loss = self._losses.loss_in(output)
        if loss is not None:
            self._is_returned = True
            if not self._goes_back:
                self._returned.append(loss)

    def _backward_reached(self, loss: BackwardLoss) -> None:
        self._goes_back = True
        found = self._open
        if found is None:
            found = self._open = _Objective(optimizers=self._early)
            self._objectives.append(found)
            self._early = []
        if not loss.is_kept:
            found.handed.append(loss)
            return
        if loss.gradients != "added" and found.added:
            if loss.gradients == "elsewhere" or self._is_updating:
                found.is_settled = True
            else:
                found.added.clear()
                found.num_passes = 0
        if found.is_settled:
            return
        if self._has_new_pass or not self._sees_passes or not found.added:
            found.num_passes += 1
        self._has_new_pass = False
        found.added.append(loss)

    def _update_called(self, optimizer: Any) -> None:
        self._is_updating = True

    def _update_ended(self, optimizer: Any) -> None:
        self._is_updating = False
        self._open = None
        if optimizer is not None:
            # An optimizer that runs in a backward hook may be ahead of the loss that backward was called on.
            updated = self._objectives[-1].optimizers if self._objectives else self._early
            updated.append(optimizer)

    def _step_ended(self, seconds: float) -> None:
        returned, objectives = self._returned, self._objectives
        self._returned, self._objectives, self._early, self._open = [], [], [], None
        makes: dict[str, Callable[[], float]] = {}
        for found in objectives:
            part = self._losses.part_updated_by(found.optimizers)
            # Parts that are trained against each other have their own terms, not micro-steps.
            adds_up = self._adds_up or self._losses.losses_add_up or part != ""
            self._most_passes = max(self._most_passes, found.num_passes)
            makes.setdefault(self._name(part), _course(found, adds_up, self._most_passes))
        if not objectives and returned:
            makes[LOSS_LOCAL] = lambda: sum(float(loss()) for loss in returned) / len(returned)

        def fill(scalars: dict[str, float]) -> None:
            for name, make in makes.items():
                scalars[name] = make()

        if makes:
            self._recorder.frames.log_when(self._recorder.guarded(LOSS_LOCAL, fill))

    def _name(self, part: str) -> str:
        known = LOSS_LOCAL if self._is_returned or self._losses.returns_loss else LOSS_BACKWARD
        return f"{known}/{part}" if part else known


def _course(found: _Objective, adds_up: bool, most_passes: int) -> Callable[[], float]:
    """Return the loss of a step from those of its backward passes: the mean over micro-steps, the sum over terms."""
    losses = found.losses
    share = 1.0 if adds_up else _share(losses, max(found.num_passes, 1), most_passes)
    return lambda: sum(loss.value() for loss in losses) / share


def _share(losses: Sequence[BackwardLoss], num_passes: int, most_passes: int) -> float:
    """Return the sum of the loop's own weights of a step's micro-steps."""
    divisors = [loss.divisor for loss in losses]
    if most_passes == 1:
        return 1.0
    if all(divisor == most_passes for divisor in divisors):
        return num_passes / most_passes  # below 1 in a step that an epoch's end has cut short
    if len(losses) != num_passes:
        return float(num_passes)
    # A loop that weights micro-steps makes the weights add up to one; one that does not leaves each unchanged.
    is_weighted = abs(math.fsum(1 / divisor for divisor in divisors) - 1) < _ALMOST
    # Sums over items, divided by the items of the whole step: padding is in the sums and not in the divisor.
    shares = math.fsum(loss.num_items / loss.divisor for loss in losses)
    return 1.0 if is_weighted or 1 - _ALMOST < shares < _PADDED else float(num_passes)
