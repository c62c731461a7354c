"""What a loop does besides its passes and updates: waiting for batches, evaluation, checkpoints, and the monitor."""

from __future__ import annotations

from threading import get_ident
from typing import ClassVar

from vario.backends.protocols.backend import Backend
from vario.backends.protocols.events import Inputs
from vario.backends.protocols.loop_capabilities import LoopTimes
from vario.probes import Recorder

NOTABLE = 0.01
"""In steps that leave out sparse parts, the loader's time is recorded if it is more than this share of the step."""


class LoopTime:
    """Where the time between passes goes, on the training thread.

    `loader_seconds` inside the loader, for the batches of training, `evaluation_seconds` from the first to the last of
    consecutive passes without gradients, with the batch before them, `checkpoint_seconds` inside functions that write
    checkpoints, `monitor_seconds` in the monitor since it was last recorded.
    """

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to what is timed."""
        self._recorder = recorder
        self._thread = get_ident()
        self._monitor_before = self._pending = 0.0
        self._workers = self._workers_told = -1
        self._forget()
        if (times := backend.offer(LoopTimes)) is not None:
            times.on_timed(self._timed)
            times.on_workers(self._workers_came)
            backend.on_pass_began(recorder.guarded("loop_time", self._pass_began), even_light=True)
        recorder.on_step_ended(recorder.guarded("loop_time", self._step_ended))

    def _forget(self) -> None:
        self._loader = self._evaluation = self._checkpoint = 0.0
        self._evaluates_since: float | None = None
        self._evaluated_until = self._saved_before = self._saved_inside = 0.0

    def _workers_came(self, number: int) -> None:
        if get_ident() == self._thread:
            self._workers = number

    def _timed(self, kind: str, began: float, ended: float) -> None:
        if get_ident() != self._thread:
            return
        if kind == "loader":
            self._pending += ended - began
        elif kind == "checkpoint":
            self._checkpoint += ended - began
        else:
            if self._evaluates_since is None:
                self._evaluates_since, self._saved_before = began, self._checkpoint
                self._evaluation += self._pending
            self._evaluated_until, self._saved_inside = ended, self._checkpoint - self._saved_before
            self._pending = 0.0

    def _pass_began(self, root: str, inputs: Inputs) -> None:
        self._thread = get_ident()
        self._settle()

    def _settle(self) -> None:
        """Put down the time that waited to be known as training's or an evaluation's."""
        if self._evaluates_since is not None:
            self._evaluation += max(0.0, self._evaluated_until - self._evaluates_since - self._saved_inside)
            self._evaluates_since = None
        self._loader += self._pending
        self._pending = 0.0

    def _step_ended(self, seconds: float) -> None:
        self._settle()
        costs, found = self._recorder.costs, {}
        if not costs.is_sparse_step:
            spent = costs.inside_seconds
            found["monitor_seconds"], self._monitor_before = spent - self._monitor_before, spent
        if self._loader and (not costs.is_sparse_step or self._loader > NOTABLE * seconds):
            found["loader_seconds"] = self._loader
        if self._evaluation:
            found["evaluation_seconds"] = self._evaluation
        if self._checkpoint:
            found["checkpoint_seconds"] = self._checkpoint
        if self._workers != self._workers_told and "loader_seconds" in found:
            self._workers_told = self._workers
            found["loader_workers"] = float(self._workers)
        if found:
            self._recorder.log(**found)
        self._forget()
