"""Singular values of weight matrices."""

from __future__ import annotations

from typing import ClassVar

from vario.backends.protocols import capabilities as offered
from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.gradients import Gradients
from vario.probes import Needs, Recorder


class Spectra:
    """`spectral_norm` and `stable_rank` of each module's weight matrix, as the forward passes of the step used it."""

    quantity: ClassVar[str] = "spectrum"
    every: ClassVar[int] = 50
    needs: ClassVar[Needs] = (offered.Spectra,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the end of backward: at a step's first one, the weights are those its forward pass used."""
        observer, weights = recorder.observer(self.quantity), needed(backend, offered.Spectra)
        measured_step = -1

        def backward_ended(gradients: Gradients) -> None:
            nonlocal measured_step
            if not observer.watching or backend.clock.step == measured_step:
                return
            measured_step = backend.clock.step
            observer.observe_all(*weights.spectra())

        backend.on_backward_ended(recorder.guarded(self.quantity, backward_ended))
