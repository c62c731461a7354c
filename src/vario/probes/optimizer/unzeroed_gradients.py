"""Gradients that were not zeroed."""

from __future__ import annotations

from typing import Any, ClassVar

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.capabilities import KeptGradients
from vario.probes import Needs, Recorder


class UnzeroedGradients:
    """`gradient_left_over`: the part of a parameter's gradient that its previous update has already used."""

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = (KeptGradients,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Check at the start of backward; each optimizer's update shows what was left over."""
        unzeroed = needed(backend, KeptGradients).unzeroed_gradients()
        if unzeroed is None:
            return
        is_logged = False

        def update_began(optimizer: Any) -> None:
            nonlocal is_logged
            left = unzeroed.update_began(optimizer)
            # If there are several optimizers, report the one that does not zero.
            if not (is_logged and isinstance(left, float)):
                recorder.log(gradient_left_over=left)
            is_logged = True

        def step_ended(seconds: float) -> None:
            nonlocal is_logged
            is_logged = False

        backend.on_backward_began(recorder.guarded("unzeroed_gradients", unzeroed.backward_began))
        backend.on_update_began(recorder.guarded("unzeroed_gradients", update_began))
        backend.on_update_ended(recorder.guarded("unzeroed_gradients", unzeroed.update_ended))
        recorder.on_step_ended(recorder.guarded("unzeroed_gradients", step_ended))
