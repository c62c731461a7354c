"""Counts steps and micro-steps from what the training loop does.

A step is one optimizer update, however often a wrapper calls `step`. It is complete when every optimizer that takes
part has updated. It stays open after that, so that a loss logged after the update belongs to it, and ends when the loop
starts the next one: a new forward or backward pass, or an update of parameters that this step has already updated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping


class Clock:
    """Counts steps and micro-steps. Methods that may end a step return whether the previous step has ended."""

    def __init__(self, step: int = 0) -> None:
        self.step = step
        self.micro_step = 0
        self.manual = False
        """Set once the loop marks the end of its steps itself."""
        self.micro_steps_per_step = 1
        """As announced, if it was: in a pipeline several forward passes run before the first backward pass."""
        self.calls_are_passes = False
        """Whether each call of an outermost module is known to be a separate pass."""
        self._passes: Counter[str] = Counter()
        self._counts_passes = True
        # Never changed in place: of very many parameters an optimizer's own set is taken as it is.
        self._updated: frozenset[int] = frozenset()
        self._updated_before: frozenset[int] = frozenset()
        self._backward_seen = False
        self._inside_update = False
        self._may_nest = False
        self.first_micro_step_since_update = 0
        """The first pass of this step that no update has used yet."""
        self._passes_at_update: Counter[str] = Counter()
        self._keeps_passes = False

    def expect(self, parameters: Iterable[int]) -> None:
        """Set the parameters that the first step will update; later steps expect those of the previous one."""
        self._updated_before = _union(self._updated_before, parameters)

    def forward_began(self) -> bool:
        """Record a call of the outermost module with gradients enabled."""
        ended = self.is_complete
        if self._backward_seen:
            self.micro_step += 1
            self._backward_seen = False
        return ended

    @property
    def has_pass(self) -> bool:
        """Whether a forward pass of this step has begun."""
        return bool(self._passes)

    @property
    def is_training(self) -> bool:
        """Whether this step had a forward or backward pass, or an optimizer's update."""
        return bool(self._passes or self._updated) or self._backward_seen

    @property
    def backward_seen(self) -> bool:
        """Whether a backward pass has followed the latest forward pass."""
        return self._backward_seen

    @property
    def awaits_pass(self) -> bool:
        """Whether the next forward call starts a new pass: there was none yet, or its backward pass or update is
        done."""
        return not self.has_pass or self._backward_seen or self.is_complete

    def pass_began(self, root: str) -> int:
        """Start a forward pass of one of the outermost modules and return its number."""
        self._passes[root] += 1
        if self._goes_by_passes:
            self.micro_step = self._passes[root] - 1
        return self.micro_step

    @property
    def _goes_by_passes(self) -> bool:
        return self.calls_are_passes or (self.micro_steps_per_step > 1 and self._counts_passes)

    def pass_failed(self, root: str) -> None:
        """Record that the pass raised."""
        self._passes[root] -= 1

    def backward_began(self, micro_step: int) -> None:
        """Record the backward pass through that forward pass."""
        if self._goes_by_passes:
            self.micro_step = micro_step

    def gradients_came(self, parameters: Iterable[int]) -> bool:
        """Record that the backward pass reached these parameters."""
        # Only after all have updated: the generator's backward pass runs through a discriminator that was just updated.
        ended = not self._updated.isdisjoint(parameters) and self.is_complete
        self._backward_seen = True
        return ended

    def backward_failed(self) -> None:
        """Record that the backward pass raised: the next forward pass replaces its forward pass."""
        self._backward_seen = False

    def update_began(self, parameters: Iterable[int], has_closure: bool = False) -> bool:
        """Record that an optimizer is about to update these parameters; a closure may run passes inside the update."""
        ended = not self.manual and not self._updated.isdisjoint(parameters)
        self._inside_update, self._may_nest = True, has_closure
        return ended

    @property
    def update_failed(self) -> bool:
        """Whether an update raised: it began, and a forward pass starts although it has not ended."""
        return self._inside_update and not self._may_nest

    def drop_update(self) -> None:
        """Drop the update that raised, and the passes whose gradients it would have used."""
        self._inside_update = self._backward_seen = False
        self.micro_step = self.first_micro_step_since_update
        self._passes = Counter(self._passes_at_update)

    def update_ended(self, parameters: Iterable[int]) -> None:
        """Record that the update is done or was skipped."""
        self._updated = _union(self._updated, parameters)
        self._inside_update = False
        self.first_micro_step_since_update = self.micro_step + self._backward_seen
        self._passes_at_update = Counter(self._passes)

    def keep_passes(self) -> None:
        """Move the passes since the latest update to the next step."""
        self._keeps_passes = self._passes != self._passes_at_update

    def next_step(self) -> None:
        """Start the next step."""
        self.step += 1
        # For a model that is called several times per pass, backward marks the end of a pass.
        self._counts_passes = all(number == self.micro_steps_per_step for number in self._passes.values())
        if self._keeps_passes:
            self.micro_step = max(0, self.micro_step - self.first_micro_step_since_update)
            self._passes -= self._passes_at_update
        else:
            self.micro_step = 0
            self._backward_seen = False
            self._passes.clear()
        self._keeps_passes = False
        self.first_micro_step_since_update = 0
        self._passes_at_update.clear()
        self._updated_before, self._updated = self._updated, frozenset()

    @property
    def is_only_forward(self) -> bool:
        """Whether this step has had a forward pass and nothing else."""
        return self.has_pass and not (self.micro_step or self._backward_seen or self._updated)

    @property
    def updated(self) -> frozenset[int]:
        """The parameters that this step has updated."""
        return self._updated

    @property
    def has_update(self) -> bool:
        """Whether this step has updated anything."""
        return bool(self._updated)

    def has_updated(self, parameter: int) -> bool:
        """Whether this step has already updated that parameter."""
        return parameter in self._updated

    def not_updated(self, names: Mapping[int, str]) -> list[str]:
        """Return the parameters that this step has not updated."""
        if names.keys() <= self._updated:
            return []
        return [names[number] for number in names if number not in self._updated]

    @property
    def is_complete(self) -> bool:
        """Whether all updates of this step have happened."""
        if self.manual or self._inside_update or not self._updated:
            return False
        # With several optimizers per step, wait for all that took part in the previous step.
        return self._updated is self._updated_before or self._updated >= self._updated_before


def _union(numbers: frozenset[int], others: Iterable[int]) -> frozenset[int]:
    """Return both together; if one is empty, the other one itself."""
    return numbers.union(others) if numbers else frozenset(others)
