"""The loss of this rank alone, before ranks average anything."""

from __future__ import annotations

from typing import Any, ClassVar

from vario.backends.base import Later, Watched
from vario.probes import Recorder


class LocalLoss:
    """`loss_local`: the mean over a step's passes of the loss that the outermost module returned, where it does."""

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to the ends of passes that train."""
        of_step: list[Later] = []

        def pass_ended(output: Any) -> None:
            loss = watched.loss_in(output)
            if loss is not None:
                of_step.append(loss)

        def step_ended(seconds: float) -> None:
            losses = of_step.copy()
            of_step.clear()

            def fill(scalars: dict[str, float]) -> None:
                scalars["loss_local"] = sum(float(loss()) for loss in losses) / len(losses)

            if losses:
                recorder.frames.log_when(recorder.guarded("loss_local", fill))

        watched.on_pass_ended(recorder.guarded("loss_local", pass_ended))
        recorder.on_step_ended(recorder.guarded("loss_local", step_ended))
