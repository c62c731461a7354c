"""Norms of gradients while micro-batches add up: what the gradient noise scale is estimated from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from vario.backends.protocols.backend import Backend
from vario.backends.protocols.events import Inputs
from vario.backends.protocols.gradients import Gradients
from vario.probes import Recorder

FIRST, LAST, NUM = "micro_norm_first", "micro_norm_last", "micro_passes"


class MicroNorms:
    """`micro_norm_first`, `micro_norm_last`: the norm of all gradients after the first and the last backward pass of a
    step that accumulates `micro_passes` of them; on one rank, without a loss scale.

    Which pass is the last is known from the step before.
    """

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to passes and updates."""
        if backend.world_size > 1:
            return  # some of these are reduced over ranks and some are not
        self._recorder = recorder
        self._usual = 0
        """Backward passes of the step before, if it accumulated."""
        self._forget()
        guarded = recorder.guarded
        backend.on_pass_began(guarded("micro_norms", self._pass_began))
        backend.on_backward_ended(guarded("micro_norms", self._backward_ended))
        backend.on_update_began(guarded("micro_norms", self._update_began))
        recorder.on_step_ended(guarded("micro_norms", self._step_ended))

    def _forget(self) -> None:
        self._passes = self._backwards = self._updates = 0
        self._norms: list[Callable[[], float]] = []

    def _pass_began(self, root: str, inputs: Inputs) -> None:
        self._passes += 1

    def _backward_ended(self, gradients: Gradients) -> None:
        self._backwards += 1
        is_wanted = self._usual > 1 and self._backwards in (1, self._usual) and gradients.scale is None
        if is_wanted and (norm := gradients.norm_later()) is not None:
            self._norms.append(norm)

    def _update_began(self, optimizer: Any) -> None:
        self._updates += 1

    def _step_ended(self, seconds: float) -> None:
        if not self._passes:
            return  # a light step, of which nothing is told
        # Several updates belong to several models, and several losses of one pass to no micro-batches.
        accumulates = self._updates == 1 and self._passes == self._backwards > 1
        if accumulates and self._backwards == self._usual and len(self._norms) == 2:
            first, last = self._norms
            num = float(self._backwards)

            def fill(scalars: dict[str, float]) -> None:
                scalars.update({FIRST: first(), LAST: last(), NUM: num})

            self._recorder.frames.log_when(self._recorder.guarded("micro_norms", fill))
        self._usual = self._backwards if accumulates else 0
        self._forget()
