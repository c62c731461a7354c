"""Singular values of weight matrices."""

from __future__ import annotations

from typing import ClassVar

from vario.backends.base import Tensor, Watched
from vario.probes import Recorder


class Spectra:
    """`spectral_norm` and `stable_rank` of each module's weight matrix, as the forward passes of the step used it."""

    quantity: ClassVar[str] = "spectrum"
    every: ClassVar[int] = 50

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to the end of backward: the first one of a step finds the weights its forward used."""
        observer = recorder.observer(self.quantity)
        measured_step = -1

        def backward_ended() -> None:
            nonlocal measured_step
            if not observer.watching or watched.clock.step == measured_step:
                return
            measured_step = watched.clock.step
            targets: list[str] = []
            tensors: list[Tensor] = []
            for name, matrix in watched.matrices(None).items():
                norm = watched.spectral_norm(name, matrix)
                targets += [f"{name}:spectral_norm", f"{name}:stable_rank"]
                tensors += [norm, watched.stable_rank(matrix, norm)]
            observer.observe_all(targets, tensors)

        watched.on_backward_ended(recorder.guarded(self.quantity, backward_ended))
