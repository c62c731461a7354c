"""The learning rate."""

from __future__ import annotations

from typing import Any, ClassVar

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.capabilities import OptimizerState
from vario.backends.protocols.observing import Later
from vario.probes import Needs, Recorder


class LearningRate:
    """`lr` of the first parameter group as used by the update; `lr/1`, ... of further groups that differ from it.

    `lr_scheduled`: whether a scheduler set it, and `lr_initial`: the rate that the scheduler starts from, each logged
    when it changes.
    """

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = (OptimizerState,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to updates; groups of several optimizers are numbered in the order of their updates."""
        state = needed(backend, OptimizerState)
        of_step: list[Later] = []
        was_scheduled: bool | None = None
        initial: float | None = None

        def update_called(optimizer: Any) -> None:
            nonlocal was_scheduled, initial
            if optimizer is not None:
                if not of_step and (starts_from := state.initial_rate(optimizer)) not in (None, initial):
                    initial = starts_from
                    recorder.log(lr_initial=initial)
                of_step.append(state.learning_rates(optimizer))
                is_scheduled = state.is_scheduled(optimizer)
                if is_scheduled is not None and is_scheduled != was_scheduled:
                    was_scheduled = is_scheduled
                    recorder.log(lr_scheduled=float(is_scheduled))

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

        backend.on_update_called(recorder.guarded("learning_rate", update_called), even_light=True)
        recorder.on_step_ended(recorder.guarded("learning_rate", step_ended))
