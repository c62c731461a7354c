"""Loss scaling: what gradients are multiplied by, and steps that a GradScaler skips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vario.backends.torch import hooks
from vario.backends.torch.instances import live_instances
from vario.steps import Clock


class LossScaling:
    """Follows the GradScaler of a training loop, given or found; one left over from elsewhere scales no loss."""

    def __init__(self, scaler: torch.amp.GradScaler | None, after_step: Callable[..., None]) -> None:
        self._after_step = after_step
        self._given = scaler
        self._scaler = scaler
        """The one that scaled the latest loss."""
        self._followed: list[torch.amp.GradScaler] = []
        self._unused: list[torch.amp.GradScaler] = []
        """Those that had scaled nothing when they were found."""
        self._searched = scaler is not None
        self.undo = hooks.Undos()

    def attach(self) -> None:
        """Follow the scaler that was given, or those there are."""
        if self._given is not None:
            self._follow(self._given)
        else:
            self._search()

    def forward_began(self) -> None:
        """Look once more: a scaler made after the Monitor is there by the first forward pass."""
        if not self._searched:
            self._searched = True
            self._search()

    def _search(self) -> None:
        for candidate in live_instances(torch.amp.GradScaler):
            if candidate.is_enabled():
                self._follow(candidate)

    def _follow(self, scaler: torch.amp.GradScaler) -> None:
        if any(scaler is known for known in self._followed):
            return
        self._followed.append(scaler)
        if getattr(scaler, "_scale", None) is None:  # a disabled one has none
            self._unused.append(scaler)

        def after_scale(*_: Any) -> None:
            self._scaler = scaler

        # GradScaler has no hooks, and only it knows of the losses it scaled and the steps it skipped.
        self.undo.add(hooks.around(scaler, "scale", after_scale))
        self.undo.add(hooks.around(scaler, "step", self._after_step))

    def scale(self) -> torch.Tensor | None:
        """The scale on its device; None without a scaler or before it scaled anything."""
        if self._scaler is None:
            # `scaler.scale(model(batch))` looks up `scale` before the forward pass that found the scaler.
            self._scaler = next((one for one in self._unused if getattr(one, "_scale", None) is not None), None)
        if self._scaler is None or not self._scaler.is_enabled():
            return None
        return self._scaler._scale


class SkippedSteps:
    """Marks a step when one of its optimizers skipped its update, whatever the others did."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._latest = -1, torch.zeros((), device="cpu")

    def log(self, skipped: torch.Tensor, log: Callable[..., None]) -> None:
        """Whether an optimizer of the step in progress skipped: 1, or 0."""
        if self._latest[0] == self._clock.step:
            skipped = torch.maximum(skipped, self._latest[1])
        self._latest = self._clock.step, skipped
        log(skipped_step=skipped)
