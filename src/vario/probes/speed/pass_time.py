"""The time a rank spends on its own work, without waiting for others: its passes, its updates, and the gaps."""

from __future__ import annotations

from time import perf_counter
from typing import Any, ClassVar

from vario.backends.host_clock import HostMark
from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.capabilities import DeviceClock
from vario.backends.protocols.events import Inputs
from vario.backends.protocols.gradients import Gradients
from vario.backends.protocols.observing import TimeMark
from vario.probes import Needs, Recorder

Now = tuple[TimeMark, float, float]
"""A moment: by the device's clock, by the host's, and what the monitor had spent of the training thread until then."""
Spans = list[tuple[Now, Now]]


class PassTime:
    """How long this rank takes for each part of a step.

    `wait_seconds` runs from the previous update to the first forward pass, `forward_seconds` inside forward passes,
    `backward_seconds` from the start of backward to the last gradient, `reduction_seconds` from there to the end of
    backward, where ranks that reduce gradients wait for each other, `update_seconds` inside optimizer steps. The
    monitor's own work is in none of these, as far as the host's clock measures them. Where a device's does,
    `host_seconds` is what the host takes for passes and updates.
    """

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = (DeviceClock,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the start and end of each part of a step."""
        self._device = needed(backend, DeviceClock)
        self._clock = backend.clock
        self._recorder = recorder
        self._costs = recorder.costs
        self._updated: Now | None = None
        self._updated_in = -1
        self._reduces = backend.world_size > 1
        self._forget()

        def guarded(call: Any) -> Any:
            return recorder.guarded("pass_time", call)

        backend.on_pass_began(guarded(self._pass_began))
        backend.on_pass_ended(guarded(self._pass_ended))
        backend.on_backward_began(guarded(self._backward_began))
        backend.on_backward_failed(guarded(self._backward_failed))
        backend.on_gradients_computed(guarded(self._gradients_computed))
        if self._reduces:
            backend.on_backward_ended(guarded(self._backward_ended))
        backend.on_update_began(guarded(self._update_began))
        backend.on_update_returned(guarded(self._update_returned))
        recorder.on_step_ended(guarded(self._step_ended))

    def _forget(self) -> None:
        self._began: Now | None = None
        self._went_back: Now | None = None
        self._update: Now | None = None
        self._waits: Spans = []
        self._passes: Spans = []
        self._backwards: Spans = []
        self._reductions: Spans = []
        self._updates: Spans = []

    def _now(self) -> Now:
        return self._device.time_mark(), perf_counter(), self._costs.inside_seconds

    def _pass_began(self, root: str, inputs: Inputs) -> None:
        self._began = self._now()
        if self._updated is not None:
            if self._updated_in == self._clock.step - 1:
                self._waits.append((self._updated, self._began))
            self._updated = None

    def _pass_ended(self, output: Any) -> None:
        if self._began is not None:
            self._passes.append((self._began, self._now()))
            self._began = None

    def _backward_failed(self) -> None:
        self._passes.clear()
        self._backwards.clear()
        self._reductions.clear()
        self._went_back = None

    def _backward_began(self) -> None:
        self._went_back = self._now()

    def _gradients_computed(self) -> None:
        if self._went_back is None:
            return
        if self._backwards and self._backwards[-1][0] is self._went_back:
            self._backwards.pop()
        self._backwards.append((self._went_back, self._now()))

    def _backward_ended(self, gradients: Gradients) -> None:
        if self._went_back is not None and self._backwards and self._backwards[-1][0] is self._went_back:
            self._reductions.append((self._backwards[-1][1], self._now()))
            self._went_back = None

    def _update_began(self, optimizer: Any) -> None:
        self._update = self._now()

    def _update_returned(self, optimizer: Any) -> None:
        # None if a closure runs its passes inside the update.
        if self._update is not None:
            self._updates.append((self._update, self._now()))
            self._update = None

    def _step_ended(self, seconds: float) -> None:
        now = self._now()
        spans = {
            "wait_seconds": self._waits,
            "forward_seconds": self._passes,
            "backward_seconds": self._backwards,
            "reduction_seconds": self._reductions,
            "update_seconds": self._updates,
        }

        passes = (*self._passes, *self._backwards, *self._updates)

        def fill(scalars: dict[str, float]) -> None:
            for name, found in spans.items():
                if found:
                    scalars[name] = sum(_seconds(began, ended) for began, ended in found)
            if passes and not isinstance(passes[0][0][0], HostMark):
                scalars["host_seconds"] = sum(_on_host(began, ended) for began, ended in passes)

        self._recorder.frames.log_when(self._recorder.guarded("pass_time", fill))
        self._forget()
        self._updated, self._updated_in = now, self._clock.step


def _seconds(began: Now, ended: Now) -> float:
    """The seconds between two moments, without the monitor's own where it is the host that takes them."""
    seconds = began[0].seconds_until(ended[0])
    return max(0.0, seconds - (ended[2] - began[2])) if isinstance(began[0], HostMark) else seconds


def _on_host(began: Now, ended: Now) -> float:
    return max(0.0, ended[1] - began[1] - (ended[2] - began[2]))
