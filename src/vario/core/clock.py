"""Which step and micro-step it is, told from what the training loop does.

A step is one optimizer update, whatever wrapper calls `step` how often. It is complete when every optimizer that takes
part has updated. It stays open then, so that a loss logged after the update belongs to it, and ends when the loop turns
to the next one: a new forward pass or backward, or an update of parameters this step has updated already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping


class Clock:
    """Counts steps and micro-steps. Methods that may end a step answer whether the step before has ended."""

    def __init__(self, step: int = 0) -> None:
        self.step = step
        self.micro_step = 0
        self.manual = False
        """Set once the loop says itself where its steps end."""
        self.passes_per_step = 1
        """As told, if told: in a pipeline several forward passes are under way before the first backward."""
        self.calls_are_passes = False
        """Whether each call of an outermost module is known to be a pass of its own."""
        self._passes: Counter[str] = Counter()
        self._counts_passes = True
        self._updated: set[int] = set()
        self._updated_before: set[int] = set()
        self._backward_seen = False
        self._inside_update = False
        self._may_nest = False
        self.first_micro_step_since_update = 0
        """Of this step: where the passes begin that no update has used yet."""
        self._passes_at_update: Counter[str] = Counter()
        self._keeps_passes = False

    def expect(self, parameters: Iterable[int]) -> None:
        """Say which parameters the first step will update; later ones go by the step before."""
        self._updated_before.update(parameters)

    def forward_began(self) -> bool:
        """The outermost module is called, gradients on."""
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
    def awaits_pass(self) -> bool:
        """Whether a forward that comes now is a new one: there was none yet, or its backward or update has been."""
        return not self.has_pass or self._backward_seen or self.is_complete

    def pass_began(self, root: str) -> int:
        """A forward pass of one of the outermost modules begins; answers which one it is."""
        self._passes[root] += 1
        if self._goes_by_passes:
            self.micro_step = self._passes[root] - 1
        return self.micro_step

    @property
    def _goes_by_passes(self) -> bool:
        return self.calls_are_passes or (self.passes_per_step > 1 and self._counts_passes)

    def pass_failed(self, root: str) -> None:
        """It raised."""
        self._passes[root] -= 1

    def backward_began(self, micro_step: int) -> None:
        """Backward goes back through that forward pass."""
        if self._goes_by_passes:
            self.micro_step = micro_step

    def gradients_came(self, parameters: Iterable[int]) -> bool:
        """Backward reached these parameters."""
        # Not before all have updated: the generator's backward runs through a discriminator updated just before.
        ended = not self._updated.isdisjoint(parameters) and self.is_complete
        self._backward_seen = True
        return ended

    def backward_failed(self) -> None:
        """It raised: the next forward pass takes the place of the one it went back through."""
        self._backward_seen = False

    def update_began(self, parameters: Iterable[int], has_closure: bool = False) -> bool:
        """An optimizer is about to update these parameters; a closure runs passes inside the update."""
        ended = not self.manual and not self._updated.isdisjoint(parameters)
        self._inside_update, self._may_nest = True, has_closure
        return ended

    @property
    def update_failed(self) -> bool:
        """Whether an update has begun that cannot still be going on when a forward pass begins: it raised."""
        return self._inside_update and not self._may_nest

    def drop_update(self) -> None:
        """Forget the update that raised, and the passes whose gradients it was to use."""
        self._inside_update = self._backward_seen = False
        self.micro_step = self.first_micro_step_since_update
        self._passes = Counter(self._passes_at_update)

    def update_ended(self, parameters: Iterable[int]) -> None:
        """It has updated them, or skipped the update."""
        self._updated.update(parameters)
        self._inside_update = False
        self.first_micro_step_since_update = self.micro_step + self._backward_seen
        self._passes_at_update = Counter(self._passes)

    def keep_passes(self) -> None:
        """The passes since the latest update are of the step that comes next."""
        self._keeps_passes = self._passes != self._passes_at_update

    def next_step(self) -> None:
        """Turn to the next step."""
        self.step += 1
        # A model called several times per pass says by backward where its passes end.
        self._counts_passes = all(number == self.passes_per_step for number in self._passes.values())
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
        self._updated_before, self._updated = self._updated, set()

    @property
    def is_only_forward(self) -> bool:
        """Whether this step has had a forward pass and nothing else."""
        return self.has_pass and not (self.micro_step or self._backward_seen or self._updated)

    @property
    def has_update(self) -> bool:
        """Whether this step has updated anything."""
        return bool(self._updated)

    def has_updated(self, parameter: int) -> bool:
        """Whether this step has updated that parameter already."""
        return parameter in self._updated

    def not_updated(self, names: Mapping[int, str]) -> list[str]:
        """The names of those parameters that this step has not updated."""
        return [names[number] for number in names if number not in self._updated]

    @property
    def is_complete(self) -> bool:
        """Whether all updates of this step have happened."""
        if self.manual or self._inside_update or not self._updated:
            return False
        # Several optimizers take turns within one step: wait for all that took part in the step before.
        return self._updated >= self._updated_before
