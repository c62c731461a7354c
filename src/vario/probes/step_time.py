"""How long steps take."""

from __future__ import annotations

from typing import ClassVar

from vario.backends.base import Watched
from vario.probes import Recorder


class StepTime:
    """`step_seconds`: from the end of one step to the end of the next."""

    quantity: ClassVar[str] = "scalar"

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Log the duration of each step."""
        recorder.on_step_ended(lambda seconds: recorder.log(step_seconds=seconds))
