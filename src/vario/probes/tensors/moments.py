"""The optimizer's state."""

from __future__ import annotations

from typing import Any, ClassVar

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.capabilities import OptimizerState
from vario.probes import Needs, Recorder


class Moments:
    """Every tensor an optimizer keeps per parameter, by its own name: `exp_avg`, `momentum_buffer`, ..."""

    quantity: ClassVar[str] = "moment"
    every: ClassVar[int] = 10
    needs: ClassVar[Needs] = (OptimizerState,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the end of updates: before the first one there is no state yet."""
        observer, state = recorder.observer(self.quantity), needed(backend, OptimizerState)

        def update_ended(optimizer: Any) -> None:
            if observer.watching:
                observer.observe_all(*state.moments(optimizer))

        backend.on_update_ended(recorder.guarded(self.quantity, update_ended))


class MomentsBefore:
    """The same tensors before the update; none at the first update, which creates them."""

    quantity: ClassVar[str] = "moment_before"
    every: ClassVar[int] = 10
    needs: ClassVar[Needs] = (OptimizerState,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the calls of updates."""
        observer, state = recorder.observer(self.quantity), needed(backend, OptimizerState)

        def update_called(optimizer: Any) -> None:
            if observer.watching:
                observer.observe_all(*state.moments(optimizer))

        backend.on_update_called(recorder.guarded(self.quantity, update_called))
