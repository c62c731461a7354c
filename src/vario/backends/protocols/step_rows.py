"""How the code that follows a training loop controls the rows of the step in progress."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class StepRows(Protocol):
    """The rows of the step in progress."""

    watched: frozenset[str]
    """The quantities that this step records."""
    is_of_next_step: bool
    """Whether `is_latest` rows are for the next step, since this step has had its update: its rows stay."""

    @property
    def has_tensors(self) -> bool:
        """Whether any tensor of this step was observed."""

    def begin_pass(self, is_new: bool) -> None:
        """Start a training pass; `is_new` is False if others wait for the same backward pass."""

    def forget_pass(self) -> None:
        """Forget a pass that raised."""

    def forget_micro_step(self) -> None:
        """Forget a backward pass that raised, and its forward passes."""

    def seal(self) -> None:
        """Note that an update has used the gradients observed so far."""

    def forget_update(self) -> None:
        """Forget what was observed since the previous update, because this one failed."""

    def take_back(self, quantity: str, targets: Iterable[str]) -> None:
        """Forget these targets' rows of that quantity in this step."""

    def set_aside(self, quantity: str, targets: Iterable[str]) -> None:
        """Take these targets' rows of that quantity out of this step, until they are brought back."""

    def bring_back(self, quantity: str, targets: Iterable[str]) -> None:
        """Restore the rows that were set aside."""

    def hold_pass(self, first_micro_step: int) -> None:
        """Hold what was observed since the latest update, from that micro-step on, for the next step."""

    def take_up_pass(self) -> None:
        """Add what was held for the step that has now begun."""
