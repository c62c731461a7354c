"""Gradients at four points of a step."""

from __future__ import annotations

from typing import Any, ClassVar

from vario.backends.protocols import capabilities as offered
from vario.backends.protocols import gradients as pushed
from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.observing import Tensor
from vario.probes import Needs, Recorder


class Gradients:
    """Each gradient after backward: accumulated over micro-steps, reduced over ranks, before clipping."""

    quantity: ClassVar[str] = "gradient"
    every: ClassVar[int] = 1

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the end of backward; the last backward of a step wins."""
        observer = recorder.observer(self.quantity)

        def backward_ended(gradients: pushed.Gradients) -> None:
            if observer.watching:
                observer.observe_all(*gradients.named(), gradients.scale)

        backend.on_backward_ended(recorder.guarded(self.quantity, backward_ended))


class LocalGradients:
    """What one backward pass of this rank adds to each gradient."""

    quantity: ClassVar[str] = "gradient_local"
    every: ClassVar[int] = 1
    needs: ClassVar[Needs] = (offered.LocalGradients,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to each parameter's gradient."""
        passes = needed(backend, offered.LocalGradients)
        observer = recorder.observer(self.quantity, passes.loss_scale)

        def gradient_came(name: str, gradient: Tensor) -> None:
            if observer.watching:
                observer.observe(name, gradient)

        passes.on_local_gradients(recorder.guarded(self.quantity, gradient_came))


class AccumulatedGradients:
    """The sum over this rank's micro-steps, before ranks reduce it; on one rank the same as `gradient`."""

    quantity: ClassVar[str] = "gradient_accumulated"
    every: ClassVar[int] = 1
    needs: ClassVar[Needs] = (offered.LocalGradients,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to each parameter's accumulation; the last one of a step wins."""
        passes = needed(backend, offered.LocalGradients)
        observer = recorder.observer(self.quantity, passes.loss_scale)

        def accumulated(name: str, gradient: Tensor) -> None:
            if observer.watching:
                observer.observe(name, gradient, is_latest=True)

        passes.on_accumulated_gradients(recorder.guarded(self.quantity, accumulated))


class AppliedGradients:
    """Each gradient as the optimizer gets it, after clipping."""

    quantity: ClassVar[str] = "gradient_applied"
    every: ClassVar[int] = 1
    needs: ClassVar[Needs] = (offered.AppliedGradients,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the start of updates."""
        observer, applied = recorder.observer(self.quantity), needed(backend, offered.AppliedGradients)

        def update_began(optimizer: Any) -> None:
            if observer.watching:
                observer.observe_all(*applied.applied_gradients(optimizer), applied.optimizer_scale(optimizer))

        backend.on_update_began(recorder.guarded(self.quantity, update_began))
