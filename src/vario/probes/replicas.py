"""Checksums of what several ranks hold alike, so that ranks that drift apart are found without writing everything."""

from __future__ import annotations

from typing import Any, ClassVar

from vario.backends.base import Watched
from vario.probes import Recorder


class Checksums:
    """One whole number per replicated weight (`name:weight`) and reduced gradient (`name:gradient`), on every rank."""

    quantity: ClassVar[str] = "checksum"
    every: ClassVar[int] = 10

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to updates: gradients before them, weights after; nothing where there are no replicas."""
        targets = watched.targets
        wanted = set(recorder.config.quantities)
        if not targets.replicated or wanted.isdisjoint(("weight", "gradient", self.quantity)):
            return
        observer = recorder.observer(self.quantity)

        def update_called(optimizer: Any) -> None:
            if observer.watching:
                observer.observe_all(*targets.gradient_checksums(optimizer))

        def update_ended(optimizer: Any) -> None:
            if observer.watching:
                observer.observe_all(*targets.weight_checksums(optimizer))

        watched.on_update_called(recorder.guarded(self.quantity, update_called))
        watched.on_update_ended(recorder.guarded(self.quantity, update_ended))
