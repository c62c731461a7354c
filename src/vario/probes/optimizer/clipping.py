"""Clipping of gradients by their norm."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

from vario.backends.protocols import capabilities as offered
from vario.backends.protocols.backend import Backend, needed
from vario.probes import Needs, Recorder

NORM, LIMIT = "clip_norm", "clip_limit"


class Clipping:
    """`clip_norm`: the norm of the gradients that clipping has found; `clip_limit`: the largest it leaves.

    If a step clips several times, it is the last one.
    """

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = (offered.Clipping,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to clipping."""

        def clipped(norm: Callable[[], float], limit: float) -> None:
            def fill(scalars: dict[str, float]) -> None:
                # What is not finite is told of the gradients themselves; without a limit only the norm is computed.
                if math.isfinite(value := norm()):
                    scalars[NORM] = value
                    if math.isfinite(limit):
                        scalars[LIMIT] = limit

            recorder.frames.log_when(recorder.guarded("clipping", fill))

        costs = recorder.costs
        told = needed(backend, offered.Clipping)
        told.on_clipped(recorder.guarded("clipping", clipped), lambda: not costs.is_sparse_step)
