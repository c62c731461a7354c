"""Gradients that nobody zeroed."""

from __future__ import annotations

from typing import Any, ClassVar

from vario.backends.base import Watched
from vario.probes import Recorder


class UnzeroedGradients:
    """`gradient_left_over`: what an update finds in a parameter's gradient that its update before has used already."""

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Look when a backward begins; each optimizer's update tells what was there all the time."""
        left_overs = watched.targets.left_over_gradients()
        if left_overs is None:
            return
        is_logged = False

        def update_began(optimizer: Any) -> None:
            nonlocal is_logged
            left = left_overs.update_began(optimizer)
            # Of several optimizers, one that does not zero is told of.
            if not (is_logged and isinstance(left, float)):
                recorder.log(gradient_left_over=left)
            is_logged = True

        def step_ended(seconds: float) -> None:
            nonlocal is_logged
            is_logged = False

        watched.on_backward_began(recorder.guarded("left_overs", left_overs.backward_began))
        watched.on_update_began(recorder.guarded("left_overs", update_began))
        watched.on_update_ended(recorder.guarded("left_overs", left_overs.update_ended))
        recorder.on_step_ended(recorder.guarded("left_overs", step_ended))
