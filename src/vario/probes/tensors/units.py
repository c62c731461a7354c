"""Dead units."""

from __future__ import annotations

from typing import ClassVar

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.capabilities import SilentUnits
from vario.probes import Needs, Recorder


class Units:
    """`dead`: the share of a module's units that are inactive in the whole batch of a step."""

    quantity: ClassVar[str] = "unit"
    every: ClassVar[int] = 50
    needs: ClassVar[Needs] = (SilentUnits,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to activation functions and layers; a step's micro-steps are one batch, so rows come at its end."""
        observer = recorder.observer(self.quantity)
        dead = needed(backend, SilentUnits).on_units(observer)

        def step_ended(seconds: float) -> None:
            if observer.watching:
                names, shares = dead()
                observer.observe_all([f"{name}:dead" for name in names], shares)

        recorder.on_step_ended(recorder.guarded(self.quantity, step_ended))
