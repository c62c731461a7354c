"""The tripwire: the norm of all gradients, at every step. When it jumps, everything is recorded.

If gradients are on the host, the step in progress is recorded: its gradients, and the weights and moments after its
update. For gradients on a device, rows are computed at every step and the writer drops them unless they are needed; the
other quantities are recorded in the next steps, since the training thread has moved on by then.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from vario.backends.protocols.backend import Backend
from vario.backends.protocols.capabilities import InputSamples
from vario.backends.protocols.gradients import Gradients
from vario.core.quantities import GRADIENT_CHANGE, GRADIENT_NORM, INPUT_NON_FINITE
from vario.rules.api.alerts import Incident
from vario.rules.api.joint_shift import EVERY, GradientShift, shift_name
from vario.training.costs import Costs
from vario.training.gradient_watch import MOST_PARAMETERS, GradientWatch, Norms
from vario.training.observer import QuantityObserver

GRADIENT = "gradient"
_AT_ONCE = frozenset({GRADIENT, "weight", "moment"})
"""What can still be recorded of a step after its backward pass."""
CLOSE_STEPS = 3
"""Steps after a jump in which everything is recorded."""
FIRST_PASSES = 2
"""The backward passes of a step whose gradients are looked at one by one; the last one is, too."""
_PAUSE = 50
"""Steps after that in which further jumps change nothing."""
_REMEMBERED = 32
_LEAST_REMEMBERED = 8
_RISE, _FALL = 3.0, 0.1
"""How far above the largest, or below the smallest remembered norm a norm has to be."""


class Tripwire:
    """Follows the norm of one rank's gradients, and has quantities recorded when it jumps."""

    def __init__(self, observers: Sequence[QuantityObserver], backend: Backend, costs: Costs) -> None:
        self._observers = observers
        self._costs = costs
        self._watches: defaultdict[int, GradientWatch] = defaultdict(GradientWatch)
        """One for each backward pass of a step: a GAN's reach other parts, and micro-steps add up."""
        self._shifts: defaultdict[int, GradientShift] = defaultdict(GradientShift)
        self._rows: defaultdict[int, list[Norms]] = defaultdict(list)
        """The norms that wait to be compared on the writer thread, by pass."""
        self._pass, self._step = 0, -1
        self._backend = backend
        self._norms: deque[float] = deque(maxlen=_REMEMBERED)
        self._was_finite = True
        self._close_from = -_PAUSE
        self._was_hint = False

    def attach(
        self, gradient: QuantityObserver, guarded: Callable[[str, Callable[..., None]], Callable[..., None]]
    ) -> None:
        """Check the norm after each backward pass."""
        self._guarded = guarded
        self._gradient = gradient
        self._backend.on_backward_ended(guarded("tripwire", self._backward_ended), even_light=True)
        self._samples = self._backend.offer(InputSamples)

    def incident_came(self, incident: Incident) -> None:
        """Record more because a rule found something. Called on the writer thread."""
        self.look_closer(is_hint=incident.severity == "note")

    def _look_at_inputs(self) -> None:
        """Log what of the batch is not finite, while it is still there."""
        for name, number in () if self._samples is None else self._samples.non_finite_inputs():
            self._gradient.log(INPUT_NON_FINITE + name, float(number))

    def _backward_ended(self, gradients: Gradients) -> None:
        if self._gradient.watching:
            self._look_at_inputs()
            return  # rules see the rows
        each = self._norms_of_each(gradients)
        norm, scale = gradients.norm() if each is None else float(np.sqrt((each**2).sum())), gradients.scale
        if norm is None:
            self._gradient.observe_all(*gradients.in_any_order(), scale, self.has_moved)
            return
        norm = norm / float(scale) if scale is not None else norm
        self._gradient.log(GRADIENT_NORM, norm)
        if not math.isfinite(norm):
            self._look_at_inputs()
        if self.has_moved(norm):
            self._gradient.observe_all(*gradients.named(), scale)
            for observer in self._observers:
                if observer.quantity in _AT_ONCE and not observer.is_fixed:
                    observer.watching = observer.quantity != GRADIENT

    def _norms_of_each(self, gradients: Gradients) -> Norms | None:
        """Return the norm of each gradient, if the loop does the same in every step; log those that have changed."""
        step, num = self._backend.clock.step, self._backend.num_backwards
        self._pass, self._step = self._pass + 1 if step == self._step else 0, step
        is_chosen = self._pass < FIRST_PASSES or self._pass == num - 1
        if self._pass >= num or not is_chosen or not self._costs.may_look(step):
            return None
        found = gradients.norms(MOST_PARAMETERS)
        if found is None:
            return None
        for name, ratio in self._watches[self._pass].look(*found).items():
            self._gradient.log(GRADIENT_CHANGE + name, ratio)
            self.look_closer(is_hint=True)
        rows = self._rows[self._pass]
        if rows and len(rows[0]) != len(found[1]):
            rows.clear()  # other parameters than before
        rows.append(found[1])
        if len(rows) >= EVERY:
            del self._rows[self._pass]
            self._gradient.log_when(self._guarded("gradient_shift", partial(self._compare, self._pass, found[0], rows)))
        return found[1]

    def _compare(self, number: int, names: Sequence[str], rows: Sequence[Norms], scalars: dict[str, float]) -> None:
        """Compare the gradients of the latest steps with those before, on the writer thread."""
        if (found := self._shifts[number].follow(names, rows)) is not None:
            scalars[shift_name(found) + (f" (pass {number + 1})" if number else "")] = found.ratio

    def has_moved(self, norm: float) -> bool:
        """Whether a norm jumped; if so, the next steps are recorded in full. Call it from one thread at a time."""
        is_finite = math.isfinite(norm)
        has_moved = self._was_finite and not is_finite
        if is_finite and len(self._norms) >= _LEAST_REMEMBERED:
            has_moved = norm > _RISE * max(self._norms) or norm < _FALL * min(self._norms)
        self._was_finite = is_finite
        if is_finite:
            self._norms.append(norm)
        return has_moved and self.look_closer()

    def look_closer(self, is_hint: bool = False) -> bool:
        """Record everything in the next steps, unless that was done recently; safe from any thread.

        What was done for a hint alone does not keep from looking again for a better reason.
        """
        step = self._backend.clock.step
        is_better = self._was_hint and not is_hint
        if step < self._close_from + CLOSE_STEPS + (0 if is_better else _PAUSE):
            return False
        self._close_from, self._was_hint = step, is_hint
        self._costs.full_before = step + 1 + CLOSE_STEPS
        for observer in self._observers:
            if not observer.is_fixed:
                observer.watched_before = max(observer.watched_before, step + 1 + CLOSE_STEPS)
        return True
