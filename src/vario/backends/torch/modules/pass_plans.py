"""What is the same in every pass of a regular loop: which targets share a tensor, and how gradients are named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

MOST_KEPT = 64
"""Plans of different passes that are kept."""


class Plan(NamedTuple):
    """Which notes of a pass are of the same tensor."""

    firsts: tuple[int, ...]
    """For each note: the first note of the same tensor."""
    first_notes: tuple[int, ...]
    """For each tensor: its first note."""
    tensors: tuple[int, ...]
    """For each note: which tensor it is of."""
    names: tuple[tuple[str, ...], ...]
    """For each tensor: its targets."""

    def are_alike(self, flags: tuple[bool, ...]) -> bool:
        """Whether all notes of a tensor have the same flag."""
        return tuple([flags[at] for at in self.firsts]) == flags


class PassPlans:
    """Remembers the plans of passes, by their targets."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], Plan] = {}

    def plan(self, targets: tuple[str, ...], tensors: Sequence[Any]) -> Plan:
        """Return the plan for the tensors of these targets, all of which exist now."""
        first_of: dict[int, int] = {}
        firsts = tuple([first_of.setdefault(id(tensor), at) for at, tensor in enumerate(tensors)])
        plan = self._known.get(targets)
        if plan is None or plan.firsts != firsts:
            if len(self._known) >= MOST_KEPT:
                self._known.clear()
            plan = self._known[targets] = _made(targets, firsts)
        return plan


def _made(targets: tuple[str, ...], firsts: tuple[int, ...]) -> Plan:
    names: dict[int, list[str]] = {}
    for target, first in zip(targets, firsts, strict=True):
        if target not in names.setdefault(first, []):
            names[first].append(target)
    number = {first: at for at, first in enumerate(names)}
    return Plan(firsts, tuple(names), tuple([number[first] for first in firsts]), tuple(map(tuple, names.values())))


class GradientNames:
    """Remembers how the names of gradients, several for some of them, become one list."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], tuple[int, ...]]] = {}

    def of(self, names: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return all targets, and which gradient each of them is of."""
        found = self._known.get(names)
        if found is None:
            if len(self._known) >= MOST_KEPT:
                self._known.clear()
            targets = tuple(target for some in names for target in some)
            found = self._known[names] = targets, tuple(at for at, some in enumerate(names) for _ in some)
        return found
