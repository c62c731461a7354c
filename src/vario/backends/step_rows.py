"""What a training loop says about the rows of the step in progress."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class StepRows(Protocol):
    """The rows of the step in progress, as whoever follows the training loop sees them."""

    is_of_next_step: bool
    """Whether the latest of a target is told that this step has updated already: its row, if any, stays."""

    def begin_pass(self, is_new: bool) -> None:
        """The outermost module is called in a pass that trains; not new where others wait for the same backward."""

    def forget_pass(self) -> None:
        """It raised: what it has shown belongs to no step."""

    def forget_micro_step(self) -> None:
        """Backward raised: what it and its passes have shown belongs to no step."""

    def seal(self) -> None:
        """An update has used the gradients observed so far."""

    def forget_update(self) -> None:
        """An update failed: what was observed since the one before it belongs to no step."""

    def take_back(self, quantity: str, targets: Iterable[str]) -> None:
        """These targets have no row of that quantity in this step after all."""

    def set_aside(self, quantity: str, targets: Iterable[str]) -> None:
        """These targets have no row of that quantity in this step, unless they are brought back."""

    def bring_back(self, quantity: str, targets: Iterable[str]) -> None:
        """They have one after all."""

    def hold_pass(self, first_micro_step: int) -> None:
        """What was observed since the latest update, from that micro-step on, is of the next step."""

    def take_up_pass(self) -> None:
        """The next step has begun: what was held for it comes in."""
