"""Gradients at the four points where they mean different things."""

from __future__ import annotations

from typing import Any, ClassVar

from vario.backends.base import Tensor, Watched
from vario.probes import Recorder


class Gradients:
    """Each gradient when backward has ended: accumulated over micro-steps, reduced over ranks, not yet clipped."""

    quantity: ClassVar[str] = "gradient"
    every: ClassVar[int] = 1

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to the end of backward; the last backward of a step wins."""
        observer = recorder.observer(self.quantity)

        def backward_ended() -> None:
            if observer.watching:
                observer.observe_all(*watched.gradients(), watched.loss_scale())

        watched.on_backward_ended(recorder.guarded(self.quantity, backward_ended))


class LocalGradients:
    """What one backward pass of this rank adds to each gradient."""

    quantity: ClassVar[str] = "gradient_local"
    every: ClassVar[int] = 1

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to each parameter's gradient."""
        observer = recorder.observer(self.quantity, watched.loss_scale)

        def gradient_came(name: str, gradient: Tensor) -> None:
            if observer.watching:
                observer.observe(name, gradient)

        watched.on_local_gradients(recorder.guarded(self.quantity, gradient_came))


class AccumulatedGradients:
    """What this rank's micro-steps add up to, before ranks share it; on one rank the same as `gradient`."""

    quantity: ClassVar[str] = "gradient_accumulated"
    every: ClassVar[int] = 1

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to each parameter's accumulation; the last of a step wins."""
        observer = recorder.observer(self.quantity, watched.loss_scale)

        def accumulated(name: str, gradient: Tensor) -> None:
            if observer.watching:
                observer.observe_latest(name, gradient)

        watched.on_accumulated_gradients(recorder.guarded(self.quantity, accumulated))


class AppliedGradients:
    """Each gradient as the optimizer gets it, after clipping."""

    quantity: ClassVar[str] = "gradient_applied"
    every: ClassVar[int] = 1

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to the beginning of updates."""
        observer = recorder.observer(self.quantity)

        def update_began(optimizer: Any) -> None:
            if observer.watching:
                observer.observe_all(*watched.gradients(optimizer), watched.optimizer_scale(optimizer))

        watched.on_update_began(recorder.guarded(self.quantity, update_began))
