"""The optimizer's state."""

from __future__ import annotations

from typing import Any, ClassVar

from vario.backends.base import Watched
from vario.probes import Recorder


class Moments:
    """Every tensor an optimizer keeps per parameter, by its own name: `exp_avg`, `momentum_buffer`, ..."""

    quantity: ClassVar[str] = "moment"
    every: ClassVar[int] = 10

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to the end of updates: at the beginning of the first one there is no state yet."""
        observer = recorder.observer(self.quantity)

        def update_ended(optimizer: Any) -> None:
            if observer.watching:
                observer.observe_all(*watched.targets.moments(optimizer))

        watched.on_update_ended(recorder.guarded(self.quantity, update_ended))


class MomentsBefore:
    """The same tensors as the update finds them; nothing at the first update, which makes them."""

    quantity: ClassVar[str] = "moment_before"
    every: ClassVar[int] = 10

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to the calls of updates."""
        observer = recorder.observer(self.quantity)

        def update_called(optimizer: Any) -> None:
            if observer.watching:
                observer.observe_all(*watched.targets.moments(optimizer))

        watched.on_update_called(recorder.guarded(self.quantity, update_called))
