"""What updates do to weights, and what changes weights outside of updates."""

from __future__ import annotations

from typing import ClassVar

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.capabilities import UpdateSamples
from vario.probes import Needs, Recorder


class Updates:
    """Each update on a sample of each parameter: `change`, `ratio`, `pace`.

    For Adam also `grad_vs_second_moment` and `eps_share`. The first steps are all watched: a rate that is too high
    shows there, and there is no past to compare with.
    """

    quantity: ClassVar[str] = "update"
    every: ClassVar[int] = 10
    first_steps: ClassVar[int] = 12
    needs: ClassVar[Needs] = (UpdateSamples,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to updates."""
        needed(backend, UpdateSamples).on_updates(recorder.observer(self.quantity))


class UnexpectedChanges:
    """Changes of a parameter between updates, on the same sample; healthy training has no rows."""

    quantity: ClassVar[str] = "unexpected_change"
    every: ClassVar[int] = 1
    needs: ClassVar[Needs] = (UpdateSamples,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to updates; a recorded step is compared with the step right after it."""
        needed(backend, UpdateSamples).on_unexpected_changes(recorder.observer(self.quantity))
