"""Loss scaling: what gradients are multiplied by, and steps that a GradScaler skips."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from vario.backends.torch import hooks


class LossScaling:
    """Follows the GradScaler of a training loop, given or found."""

    def __init__(self, scaler: torch.amp.GradScaler | None, after_step: Callable[..., None]) -> None:
        self._after_step = after_step
        self._scaler = scaler
        self._searched = scaler is not None
        self.undo = hooks.Undos()
        if scaler is not None:
            self._follow(scaler)

    def _follow(self, scaler: torch.amp.GradScaler) -> None:
        self._scaler = scaler
        # GradScaler has no hooks, and only it knows of a step it skipped.
        self.undo.add(hooks.around(scaler, "step", self._after_step))

    def search(self) -> None:
        """Look once for an enabled GradScaler among all live objects."""
        if self._searched:
            return
        self._searched = True
        for candidate in gc.get_objects():
            if issubclass(type(candidate), torch.amp.GradScaler) and candidate.is_enabled():
                self._follow(candidate)
                return

    def scale(self) -> torch.Tensor | None:
        """The scale on its device; None without a scaler or before it scaled anything."""
        if self._scaler is None or not self._scaler.is_enabled():
            return None
        return self._scaler._scale
