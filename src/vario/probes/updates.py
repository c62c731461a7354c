"""What updates do to weights, and what changes weights while no optimizer runs."""

from __future__ import annotations

from typing import ClassVar

from vario.backends.base import Watched
from vario.probes import Recorder


class Updates:
    """Each update on a sample of each parameter: `change`, `ratio`, `pace`; of Adam also `surprise`, `eps_share`."""

    quantity: ClassVar[str] = "update"
    every: ClassVar[int] = 10

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to updates."""
        watched.on_updates(recorder.observer(self.quantity))


class StrayChanges:
    """What changed a parameter between updates, on the same sample; healthy training has no row of it."""

    quantity: ClassVar[str] = "stray"
    every: ClassVar[int] = 1

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to updates; a step that is watched is compared with the one right after it."""
        watched.on_stray_changes(recorder.observer(self.quantity))
