"""Random projections of gradients: how much consecutive gradients, and those of several ranks, agree."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from vario.backends.protocols import capabilities as offered
from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.gradients import Gradients
from vario.backends.protocols.observing import Later, Sketch, Tensor
from vario.core.quantities import GRADIENT_COSINE, LOCAL_SKETCH
from vario.core.records import COLUMNS, Table
from vario.probes import Needs, Recorder

SIZE = 512
"""Numbers of a projection: the standard error of a cosine c is about (1 - c^2) / 22.6."""


class GradientSketches:
    """Random projections of gradients, from which cosines follow: `gradient_cosine`, and `gradient_local:<n>` per rank.

    Every recorded step is followed by a second one; `gradient_cosine` is that of the two. With several ranks the
    numbers of the local gradient's projection are kept for the reader, which compares ranks.
    """

    quantity: ClassVar[str] = "gradient_sketch"
    every: ClassVar[int] = 50
    needs: ClassVar[Needs] = (offered.Sketches, offered.LocalGradients)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the gradients of passes, and to the ends of backward passes and steps."""
        self._recorder = recorder
        self._observer = recorder.observer(self.quantity)
        self._sketches = needed(backend, offered.Sketches)
        self._local: Sketch | None = None
        self._whole: Later | None = None
        self._previous: Later | None = None
        self._seed = self._previous_step = -2
        guarded = partial(recorder.guarded, self.quantity)
        if backend.world_size > 1:
            needed(backend, offered.LocalGradients).on_local_gradients(guarded(self._local_came))
        backend.on_backward_ended(guarded(self._backward_ended))
        recorder.on_step_ended(guarded(self._step_ended))

    def _local_came(self, name: str, gradient: Tensor) -> None:
        if not self._observer.watching:
            return
        if self._local is None:
            self._local = self._sketches.new_sketch(SIZE, self._observer.step_id[0])
        self._local.add(name, gradient)

    def _backward_ended(self, gradients: Gradients) -> None:
        """Project what has been accumulated and reduced so far; the last pass of a step counts."""
        if not self._observer.watching:
            return
        step = self._observer.step_id[0]
        if self._previous is None or self._previous_step != step - 1:
            self._previous, self._seed = None, step
        sketch = self._sketches.new_sketch(SIZE, self._seed)
        for name, gradient in zip(*gradients.named(), strict=True):
            sketch.add(name, gradient)
        self._whole = sketch.later()

    def _step_ended(self, seconds: float) -> None:
        step = self._observer.step_id[0]
        if not self._observer.watching:
            return
        if self._previous_step != step - 1:
            self._observer.watch_next()
        local = None if self._local is None else self._local.later()
        if local is not None:
            self._observer.add_later(partial(_rows, local), SIZE)
        before, now = self._previous, self._whole
        if before is not None and now is not None:
            self._recorder.frames.log_when(self._recorder.guarded(self.quantity, partial(_log_cosine, before, now)))
        self._previous, self._previous_step = now, step
        self._local = self._whole = None


def _log_cosine(before: Later, now: Later, scalars: dict[str, float]) -> None:
    first, second = (np.asarray(found(), np.float64) for found in (before, now))
    size = float(np.linalg.norm(first) * np.linalg.norm(second))
    if np.isfinite(size) and size > 0:
        scalars[GRADIENT_COSINE] = float(first @ second) / size


def _rows(later: Later) -> tuple[list[str], Table]:
    """One row for each number; none at all if the gradient was not finite, which other rows say."""
    numbers: npt.NDArray[Any] = np.asarray(later(), np.float64)
    if not np.isfinite(numbers).all():
        numbers = numbers[:0]
    of = {"count": np.ones_like(numbers), "sum_squares": numbers**2, "zeros": (numbers == 0).astype(np.float64)}
    of |= dict.fromkeys(("sum", "min", "max"), numbers)
    nothing = np.zeros_like(numbers)
    table = np.stack([of.get(column, nothing) for column in COLUMNS], axis=1)
    return [f"{LOCAL_SKETCH}:{place}" for place in range(len(numbers))], table
