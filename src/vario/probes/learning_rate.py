"""How fast the optimizer is told to learn."""

from __future__ import annotations

from typing import Any, ClassVar

from vario.backends.base import Later, Watched
from vario.probes import Recorder


class LearningRate:
    """`lr` of the first group of parameters as an update uses it; `lr/1`, ... of further groups that differ from it."""

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to updates; the groups of several optimizers are counted in the order these update."""
        of_step: list[Later] = []

        def update_called(optimizer: Any) -> None:
            if optimizer is not None:
                of_step.append(watched.learning_rates(optimizer))

        def step_ended(seconds: float) -> None:
            fetches = of_step.copy()
            of_step.clear()

            def fill(scalars: dict[str, float]) -> None:
                rates = [float(rate) for fetch in fetches for rate in fetch()]
                for number, rate in enumerate(rates):
                    if rate == rate and (number == 0 or rate != rates[0]):
                        scalars[f"lr/{number}" if number else "lr"] = rate

            if fetches:
                recorder.frames.log_when(recorder.guarded("learning_rate", fill))

        watched.on_update_called(recorder.guarded("learning_rate", update_called))
        recorder.on_step_ended(recorder.guarded("learning_rate", step_ended))
