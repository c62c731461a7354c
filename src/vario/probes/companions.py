"""Whether a model that runs beside the watched one is what it was."""

from __future__ import annotations

from collections import defaultdict
from typing import ClassVar

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.companions import Companions
from vario.core.quantities import COMPANION_CHANGE, COMPANION_COPIED, COMPANION_SINCE
from vario.probes import Needs, Recorder
from vario.probes.companion_watch import CompanionWatch

FIRST_STEP, EVERY = 4, 5
"""The step of the first look, and the steps between two."""


class CompanionProbe:
    """`companion_change/training:Teacher` and the like: a teacher, a target network or an average is not what it was.

    `training`, `training_at_start`: it works as in training, with dropout or with the statistics of the batch. `still`:
    it no longer follows the model. `apart`: it is far from the model it is a copy of. `moved`: it never changed before.
    `companion_since/...`: the step of the first look that met it. `companion_copied`: a target network has taken over
    the weights of the model, as it does now and then.
    """

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = (Companions,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Look every few steps."""
        self._companions, self._clock = needed(backend, Companions), backend.clock
        self._recorder = recorder
        self._watches = defaultdict[int, CompanionWatch](CompanionWatch)
        self._num_steps, self._has_none = 0, False
        self._companions.search()  # before training: it would hold up a step
        recorder.on_step_ended(recorder.guarded("companions", self._step_ended))

    def _step_ended(self, seconds: float) -> None:
        self._num_steps += 1
        if self._has_none or self._num_steps % EVERY != FIRST_STEP:
            return
        found = self._companions.companions()
        self._has_none = not found and not self._watches
        for each in found:
            watch = self._watches[each.number]
            for event in watch.look(self._clock.step, each):
                key = f"{event.what}:{each.name}"
                self._recorder.log(**{COMPANION_CHANGE + key: event.value, COMPANION_SINCE + key: float(event.since)})
            if watch.has_copied:
                self._recorder.log(**{COMPANION_COPIED: 1.0})
