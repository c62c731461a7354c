"""Checksums of what several ranks have in common, to detect ranks that diverge without writing everything."""

from __future__ import annotations

from typing import Any, ClassVar

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.capabilities import Replicas
from vario.probes import Needs, Recorder


class Checksums:
    """One integer per replicated weight (`name:weight`) and reduced gradient (`name:gradient`), on every rank."""

    quantity: ClassVar[str] = "checksum"
    every: ClassVar[int] = 10
    sees_light_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = (Replicas,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to updates: gradients before them, weights after them; does nothing without replicas."""
        replicas = needed(backend, Replicas)
        wanted = set(recorder.config.quantities)
        if not replicas.replicated or wanted.isdisjoint(("weight", "gradient", self.quantity)):
            return
        observer = recorder.observer(self.quantity)

        def update_called(optimizer: Any) -> None:
            if observer.watching:
                observer.observe_all(*replicas.gradient_checksums(optimizer))

        def update_ended(optimizer: Any) -> None:
            if observer.watching:
                observer.observe_all(*replicas.weight_checksums(optimizer))

        backend.on_update_called(recorder.guarded(self.quantity, update_called))
        backend.on_update_ended(recorder.guarded(self.quantity, update_ended))
