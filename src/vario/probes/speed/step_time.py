"""Step time."""

from __future__ import annotations

from typing import ClassVar

from vario.backends.protocols.backend import Backend
from vario.probes import Recorder


class StepTime:
    """`step_seconds`: from one update to the next."""

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Log the duration of each step."""
        recorder.on_step_ended(lambda seconds: recorder.log(step_seconds=seconds))
