"""Who updates a model: optimizers, or the loop itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from vario.backends.torch.loop import discovery
from vario.backends.torch.optimizer.updated_parts import UpdatedParts
from vario.backends.torch.optimizer.weight_changes import WeightChanges
from vario.backends.torch.targets import Targets
from vario.core.clock import Clock


class Updaters:
    """The optimizers that a training loop was watched with, or those found at its first pass; if none, the loop."""

    def __init__(self, targets: Targets, clock: Clock) -> None:
        self._targets = targets
        self._clock = clock
        self._parts = UpdatedParts(targets)
        self.given: Sequence[torch.optim.Optimizer] = targets.engine.torch_optimizers()
        for optimizer in self.given:
            targets.check_optimizer(optimizer)
            self._expect(optimizer)
        self._are_known = bool(self.given)
        self._by_hand: WeightChanges | None = None

    def _expect(self, optimizer: torch.optim.Optimizer) -> None:
        self._clock.expect(self._targets.engine.parameter_ids(optimizer))
        self._parts.note(optimizer)

    def forward_began(self) -> None:
        """At the first pass, look for optimizers if none was given."""
        if self._are_known:
            return
        self._are_known = True
        found = [optimizer for optimizer in discovery.live_optimizers() if self._targets.are_updated_by(optimizer)]
        for optimizer in found:
            self._expect(optimizer)
        if not found and self._targets.engine.keeps_parameters:
            self._by_hand = WeightChanges(self._targets.all_parameters.values())
            self._by_hand.note()

    def has_updated_by_hand(self) -> bool:
        """Whether weights have changed, if there is no optimizer and the loop does not mark its steps."""
        return self._by_hand is not None and not self._clock.manual and self._by_hand.changed()

    def update_began(self) -> None:
        """Note that an optimizer updates the model."""
        self._by_hand = None

    def update_ended(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the part of the model that an optimizer has updated."""
        self._parts.note(optimizer)

    def known(self) -> Collection[torch.optim.Optimizer]:
        """Return the optimizers that were given, or else all of the process."""
        return self.given or discovery.live_optimizers()

    def is_given(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the loop was watched with this optimizer."""
        return any(optimizer is given for given in self.given)

    def part_updated_by(self, optimizers: Collection[torch.optim.Optimizer]) -> str:
        """Return the part of the model that these update together; empty if no other optimizer updates another part."""
        return self._parts.name(optimizers)
