"""What a rank does before it meets the others: its forward passes, and what it does before them."""

from __future__ import annotations

from typing import Any, ClassVar

from vario.backends.base import Inputs, TimeMark, Watched
from vario.probes import Recorder

Spans = list[tuple[TimeMark, TimeMark]]


class PassTime:
    """`forward_seconds` inside a step's forward passes, and `wait_seconds` from the update before to the first one."""

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to both ends of passes that train, and to the end of each step's updates."""
        self._watched = watched
        self._recorder = recorder
        self._updated: TimeMark | None = None
        self._waits: Spans = []
        self._began: TimeMark | None = None
        self._passes: Spans = []
        watched.on_pass_began(recorder.guarded("pass_time", self._pass_began))
        watched.on_pass_ended(recorder.guarded("pass_time", self._pass_ended))
        watched.on_backward_failed(recorder.guarded("pass_time", self._backward_failed))
        recorder.on_step_ended(recorder.guarded("pass_time", self._step_ended))

    def _pass_began(self, root: str, inputs: Inputs) -> None:
        self._began = self._watched.time_mark()
        if self._updated is not None:
            self._waits.append((self._updated, self._began))
            self._updated = None

    def _pass_ended(self, output: Any) -> None:
        if self._began is not None:
            self._passes.append((self._began, self._watched.time_mark()))
            self._began = None

    def _backward_failed(self) -> None:
        self._passes.clear()

    def _step_ended(self, seconds: float) -> None:
        spans = {"forward_seconds": self._passes, "wait_seconds": self._waits}

        def fill(scalars: dict[str, float]) -> None:
            for name, found in spans.items():
                if found:
                    scalars[name] = sum(began.seconds_until(ended) for began, ended in found)

        self._recorder.frames.log_when(self._recorder.guarded("pass_time", fill))
        self._updated, self._began, self._waits, self._passes = self._watched.time_mark(), None, [], []
