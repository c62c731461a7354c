"""Communication between ranks."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.capabilities import Collectives
from vario.backends.protocols.collectives import CallObserver
from vario.backends.protocols.observing import Observer, Tensor
from vario.core.records import Collective, StepId
from vario.core.selector import place_matcher
from vario.core.text import size
from vario.probes import Needs, Recorder

log = logging.getLogger("vario")

_LISTED_STEPS = 2
"""Calls of this many steps are listed in the log."""
_MAX_KNOWN = 4096
"""The most calls whose target is remembered: code generated again and again must not fill the memory."""


class Communication:
    """Collectives by operation and call site: `:input`, `:output` and `:seconds` of `all_reduce@train.py[31]`."""

    quantity: ClassVar[str] = "communication"
    every: ClassVar[int] = 10
    needs: ClassVar[Needs] = (Collectives,)

    def __init__(
        self,
        is_chosen: Callable[[Collective], bool] | None = None,
        sides: tuple[str, ...] = ("input", "output", "seconds"),
        *,
        per_pass: bool = True,
    ) -> None:
        """Record these rows of the calls that `is_chosen` accepts.

        By default those at the call sites `communication` names. A row covers the whole step, or one micro-step with
        `per_pass`.
        """
        self.collectives: dict[str, Collective] = {}
        """All collectives seen, by target."""
        self.num_calls: Counter[str] = Counter()
        """Calls in the first two steps, by target."""
        self._is_chosen = is_chosen
        self._sides = sides
        self._per_pass = per_pass
        self._targets: dict[tuple[str, ...], str] = {}
        self._known: dict[int, tuple[Collective, str | None]] = {}
        self._naming = threading.Lock()
        self._num_steps = 0
        self._error: Exception | None = None

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Follow all collectives of the process."""
        self._observer: Observer = recorder.observer(self.quantity)
        self._is_leading = recorder.is_leading
        if self._is_chosen is None:
            places = [place_matcher(place, self.quantity) for place in recorder.config.communication]
            self._is_chosen = lambda call: not places or any(place.search(";".join(call.stack)) for place in places)
        needed(backend, Collectives).on_collectives(self)
        recorder.on_step_ended(recorder.guarded(self.quantity, self._step_ended))

    # Called by the watched model, from any thread

    @property
    def listening(self) -> bool:
        """Whether this step is recorded, or its calls are still to be listed."""
        return self._observer.watching or self._num_steps < _LISTED_STEPS

    def called(self, call: Collective) -> CallObserver | None:
        """Take a call; return the observer of its tensors, if any."""
        known = self._known.get(id(call))
        if known is None or known[0] is not call:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            with self._naming:
                known = self._known[id(call)] = call, self._named(call)
        target = known[1]
        if target is None:
            return None
        if self._num_steps < _LISTED_STEPS:
            self.num_calls[target] += 1
        if not self._observer.watching or not self._sides:
            return None
        step, micro_step = self._observer.step_id
        return _Call(self._observer, (step, micro_step if self._per_pass else 0), target, self._sides)

    def failed(self, error: Exception) -> None:
        """Keep the error for the training thread."""
        self._error = self._error or error

    def _named(self, call: Collective) -> str | None:
        """Return the target of a call; calls at one place that differ in group or dtype get different numbers."""
        assert self._is_chosen is not None
        if not self._is_chosen(call):
            return None
        key = (call.operation, call.site, call.group, call.dtype)
        target = self._targets.get(key)
        if target is None:
            number, target = 1, call.target
            while target in self.collectives:
                number += 1
                target = f"{call.target}#{number}"
            self._targets[key] = target
            self.collectives[target] = dataclasses.replace(call, target=target)
            self._observer.describe(self.collectives[target])
        return target

    # At the end of each step

    def _step_ended(self, seconds: float) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
        self._num_steps += 1
        if self._num_steps == _LISTED_STEPS and self._is_leading and self.collectives:
            log.info("collectives of the first %d steps:\n%s", _LISTED_STEPS, listing(self))


def listing(communication: Communication) -> str:
    """Return one line per target: what it is, and how often it was called."""
    return "\n".join(
        f"  {target}  {communication.num_calls[target]} x {size(call.num_bytes)}, {call.dtype or 'no tensor'}, "
        f"group {call.group} of {len(call.ranks)} ranks{', async' if call.is_async else ''}"
        for target, call in communication.collectives.items()
    )


class _Call:
    """A call in progress: its rows belong to the step it was made in, whenever its result arrives."""

    def __init__(self, observer: Observer, step_id: StepId, target: str, sides: tuple[str, ...]) -> None:
        self._observer = observer
        self._step_id = step_id
        self._target = target
        self._sides = sides

    def observe(self, side: str, tensors: list[Tensor]) -> None:
        """Record its input or output."""
        if side in self._sides:
            self._observer.observe_at(self._step_id, f"{self._target}:{side}", tensors)

    def took(self, seconds: float) -> None:
        """Record its duration."""
        if "seconds" in self._sides:
            self._observer.observe_at(self._step_id, f"{self._target}:seconds", seconds)
