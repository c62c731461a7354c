"""Weights before and after each update."""

from __future__ import annotations

from typing import Any, ClassVar

from vario.backends.protocols.backend import Backend
from vario.probes import Recorder


class Weights:
    """Each parameter after the optimizer's update; frozen ones once, because they do not change."""

    quantity: ClassVar[str] = "weight"
    every: ClassVar[int] = 10

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the end of updates."""
        observer = recorder.observer(self.quantity)
        frozen_are_known = False

        def update_ended(optimizer: Any) -> None:
            nonlocal frozen_are_known
            if not observer.watching:
                return
            names, tensors = backend.weights(optimizer)
            if not frozen_are_known:
                frozen_are_known = True
                frozen_names, frozen_tensors = backend.frozen_weights()
                names, tensors = [*names, *frozen_names], [*tensors, *frozen_tensors]
            observer.observe_all(names, tensors)

        backend.on_update_ended(recorder.guarded(self.quantity, update_ended))


class WeightsBefore:
    """Each parameter before the optimizer's update: what this step's forward passes used."""

    quantity: ClassVar[str] = "weight_before"
    every: ClassVar[int] = 10

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the calls of updates."""
        observer = recorder.observer(self.quantity)

        def update_called(optimizer: Any) -> None:
            if observer.watching:
                observer.observe_all(*backend.weights(optimizer))

        backend.on_update_called(recorder.guarded(self.quantity, update_called))
