"""Units that fall silent."""

from __future__ import annotations

from typing import ClassVar

from vario.backends.base import Watched
from vario.probes import Recorder


class Units:
    """`dead`: the share of a module's units that are silent in all of the step's batch."""

    quantity: ClassVar[str] = "unit"
    every: ClassVar[int] = 50

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to activation functions and layers; a step's micro-steps are one batch, so rows come at its end."""
        observer = recorder.observer(self.quantity)
        dead = watched.inside.on_units(observer)

        def step_ended(seconds: float) -> None:
            if observer.watching:
                names, shares = dead()
                observer.observe_all([f"{name}:dead" for name in names], shares)

        recorder.on_step_ended(recorder.guarded(self.quantity, step_ended))
