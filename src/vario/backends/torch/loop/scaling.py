"""Loss scaling: what gradients are multiplied by, and steps that a GradScaler skips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vario.backends.torch.loop import hooks
from vario.backends.torch.loop.live_instances import derived
from vario.core.clock import Clock


class LossScaling:
    """Follows the GradScaler of a training loop: the one given, or whichever scales the losses."""

    def __init__(self, scaler: torch.amp.GradScaler | None, after_step: Callable[..., None]) -> None:
        self._after_step = after_step
        self._given = scaler
        self._scaler = scaler
        """The scaler of the latest loss."""
        self._kinds: set[type[Any]] = set()
        """Classes whose scalers are followed."""
        self._has_begun = False
        self.undo = hooks.Undos()

    def attach(self) -> None:
        """Follow the given scaler, or all in the process: one created later is used through the same methods."""
        # GradScaler has no hooks, and only it knows which losses it scaled and which steps it skipped.
        if self._given is not None:
            scaler = self._given
            self.undo.add(hooks.around(scaler, "scale", lambda *args: self._scaled(scaler)))
            self.undo.add(hooks.around(scaler, "step", lambda *args: self._stepped(scaler, *args)))
            return
        every: set[type[Any]] = {torch.amp.GradScaler, *derived(torch.amp.GradScaler)}
        for kind in every - self._kinds:
            self._kinds.add(kind)
            for name, call in (("scale", self._scaled), ("step", self._stepped)):
                if name in vars(kind):
                    self.undo.add(hooks.around(kind, name, call))

    def forward_began(self) -> None:
        """Look for further classes, once: some packages import theirs when they create a scaler."""
        if not self._has_begun and self._given is None:
            self._has_begun = True
            self.attach()

    def _scaled(self, scaler: torch.amp.GradScaler, *_: Any) -> None:
        if scaler.is_enabled():
            self._scaler = scaler

    def _stepped(self, scaler: torch.amp.GradScaler, *args: Any) -> None:
        if scaler.is_enabled():
            self._after_step(*args)

    def scale(self) -> torch.Tensor | None:
        """Return the scale on its device; None without a scaler or before it scaled anything."""
        if self._scaler is None or not self._scaler.is_enabled():
            return None
        return self._scaler._scale


class SkippedSteps:
    """Marks a step if one of its optimizers skipped its update, whatever the others did."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._latest = -1, torch.zeros((), device="cpu")

    def log(self, skipped: torch.Tensor, log: Callable[..., None]) -> None:
        """Log whether an optimizer of the step in progress skipped: 1 or 0."""
        if self._latest[0] == self._clock.step:
            skipped = torch.maximum(skipped, self._latest[1])
        self._latest = self._clock.step, skipped
        log(skipped_step=skipped)
