"""What trainers of other packages report: losses, evaluations, everything their users would see printed.

Each module follows one package, once it is imported, through the method it reports with. If one of vario's callbacks
(`integrations/`) is in use, the same numbers come from there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vario.backends.protocols.events import Events, Undo
from vario.backends.torch.loop import hooks
from vario.backends.torch.targets import Targets
from vario.backends.torch.trainers import accelerate, ignite, lightning, skorch, transformers
from vario.backends.torch.trainers.listener import Listener
from vario.core.clock import Clock

_FOLLOWED = (transformers, lightning, accelerate, ignite, skorch)
_PART = "trainer reports"


class TrainerReports:
    """Follows every trainer that is imported before the first pass."""

    def __init__(self, targets: Targets, clock: Clock, losses_add_up: Callable[[], None]) -> None:
        self._known = targets.engine.names
        self._clock = clock
        self._losses_add_up = losses_add_up
        self._has_begun = False
        self._followed: set[str] = set()
        self._listener: Listener | None = None
        self._undo = hooks.Undos()

    def attach(self, events: Events, report: Callable[[Mapping[str, Any]], None]) -> Undo:
        """Follow those that are imported."""
        is_off: list[None] = []

        def guarded(call: Callable[..., None]) -> Callable[..., None]:
            def run(*args: Any, **kwargs: Any) -> None:
                if is_off:
                    return
                try:
                    call(*args, **kwargs)
                except Exception as error:  # noqa: BLE001 - the failure policy: this runs inside the trainer
                    is_off.append(None)
                    events.switch_off(_PART, error)

            return run

        self._listener = Listener(self._is_ours, report, self._losses_add_up, lambda: self._clock.step, guarded)
        self._look()
        return self._undo

    def forward_began(self) -> None:
        """Look again: a trainer imported after the Monitor was created is there by the first pass."""
        if not self._has_begun:
            self._has_begun = True
            self._look()

    def _look(self) -> None:
        listener = self._listener
        if listener is None:
            return
        for trainer in _FOLLOWED:
            for name in trainer.MODULES:
                if name in sys.modules and name not in self._followed:
                    self._followed.add(name)
                    self._undo.add(_follow(trainer, sys.modules[name], listener))

    def _is_ours(self, models: Iterable[Any]) -> bool:
        parameters = (parameter for model in models if model is not None for parameter in model.parameters())
        return any(id(parameter) in self._known for parameter in parameters)


def _follow(trainer: Any, module: Any, listener: Listener) -> Undo:
    undo: list[Undo] = []
    # A release that reports in another way is not followed, and that is logged.
    listener.guarded(lambda: undo.append(trainer.follow(module, listener)))()
    return undo[0] if undo else lambda: None
