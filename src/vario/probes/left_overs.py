"""Gradients that nobody zeroed."""

from __future__ import annotations

from typing import Any, ClassVar

from vario.backends.base import Watched
from vario.probes import Recorder


class LeftOvers:
    """`gradient_left_over`: what a parameter's gradient still holds when the first backward of a step sets out."""

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Look once after each update, before its successor's gradients come."""
        is_first = True

        def update_ended(optimizer: Any) -> None:
            nonlocal is_first
            is_first = True

        def backward_began() -> None:
            nonlocal is_first
            if is_first:
                is_first = False
                left = watched.targets.left_over_gradient()
                if left is not None:
                    recorder.log(gradient_left_over=left)

        watched.on_update_ended(recorder.guarded("left_overs", update_ended))
        watched.on_backward_began(recorder.guarded("left_overs", backward_began))
