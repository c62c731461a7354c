"""Switches that decide what is trained."""

from __future__ import annotations

from typing import Any, ClassVar

from vario.backends.base import Watched
from vario.probes import Recorder


class Settings:
    """`setting/...`: modules in evaluation mode, trainable parameters, optimizer options; logged when they change."""

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Look at each update."""
        known: dict[str, float] = {}
        optimizers: dict[int, int] = {}

        def update_called(optimizer: Any) -> None:
            if optimizer is None:
                return
            number = optimizers.setdefault(id(optimizer), len(optimizers))
            where = f"setting/{number}/" if number else "setting/"
            found = {where + name: value for name, value in watched.targets.settings(optimizer).items()}
            changed = {name: value for name, value in found.items() if known.get(name) != value}
            known.update(changed)
            if changed:
                recorder.log(**changed)

        watched.on_update_called(recorder.guarded("settings", update_called))
