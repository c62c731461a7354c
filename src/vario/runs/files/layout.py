"""Which rank holds what of a parameter, from the `structure.json` of all ranks: shares add up, replicas count once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from vario.core.records import Structure
from vario.runs.files.arrays import numbers, take


@dataclass
class _Held:
    """Who has what of one parameter."""

    numbers: dict[str, int] = field(default_factory=dict)
    """By part: its number."""
    parts: dict[int, int] = field(default_factory=dict)
    """By rank: the number of the part it has."""
    replicas: dict[int, Sequence[int]] = field(default_factory=dict)
    """By rank: those known to hold the same."""

    @cached_property
    def left_out(self) -> frozenset[int]:
        """Ranks whose tensor counts nowhere, since others with a lower rank have the same part."""
        first: dict[int, int] = {}
        for rank in sorted(self.parts):
            first.setdefault(self.parts[rank], self.replicas[rank][0])
        return frozenset(rank for rank, part in self.parts.items() if self.replicas[rank][0] != first[part])


def _strangers(held: _Held) -> list[list[int]]:
    if not held.left_out:
        return []
    groups: dict[tuple[int, int], list[int]] = {}
    for rank in sorted(held.parts):
        # Groups have no rank in common, so the lowest one tells them apart.
        groups.setdefault((held.parts[rank], held.replicas[rank][0]), []).append(rank)
    divided = {held.parts[rank] for rank in held.left_out}
    return [ranks for (part, _), ranks in groups.items() if part in divided]


_NOTHING = _Held()


class Layout:
    """Groups the ranks of a run by the part of a parameter they hold."""

    def __init__(self, ranks: Iterable[int], structure: Callable[[int], Structure]) -> None:
        self._held: dict[str, _Held] = {}
        self._num_read = 0
        told_of: set[int] = set()
        for rank in sorted(ranks):
            # Of a thousand ranks under DDP the first says all there is to know: nothing else is read then.
            if rank not in told_of:
                self._num_read += 1
                told_of |= self._read(rank, structure(rank).get("parameters") or [])

    def _read(self, rank: int, parameters: Iterable[Mapping[str, Any]]) -> set[int]:
        """Note what one rank says it holds; answers who holds the same of all of it."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for parameter in parameters:
            told = tuple(parameter.get("replicas") or ())
            alike = groups.setdefault(told, sorted(told))
            held = self._held.setdefault(str(parameter.get("name")), _Held())
            part = held.numbers.setdefault(f"{parameter.get('box')} {parameter.get('range')}", len(held.numbers))
            for other in alike:
                held.parts.setdefault(other, part)
                held.replicas.setdefault(other, alike)
            # A rank knows itself best: what others say of it may be from before a resume.
            held.parts[rank] = part
            held.replicas[rank] = alike or [rank]
        return set.intersection(*map(set, groups)) if groups else set()

    def holders(self, target: str) -> list[list[int]]:
        """The ranks that hold each distinct part of a target, be it a parameter or a moment of one.

        Those of one part are replicas, or models that train side by side: either way the part counts once.
        """
        held = self._of(target)
        found: list[list[int]] = [[] for _ in held.numbers]
        for rank in sorted(held.parts):
            found[held.parts[rank]].append(rank)
        return [ranks for ranks in found if ranks]

    def strangers(self, target: str) -> list[list[int]]:
        """Ranks that hold the same part of a target and are not known to hold the same: groups of those that are.

        Empty where all that have a part are replicas, and where ranks divide a target up as they say.
        """
        return _strangers(self._of(target))

    def counted(self, target: str, rank: int) -> int | None:
        """As `part`; -1 where the rank's own tensor is left out, since strangers with a lower rank have that part."""
        held = self._of(target)
        part = held.parts.get(rank)
        return -1 if part is not None and rank in held.left_out else part

    @cached_property
    def has_strangers(self) -> bool:
        """Whether ranks hold anything under one name of which nothing says that it is the same."""
        return self._num_read > 1 and any(_strangers(held) for held in self._held.values())

    def part(self, target: str, rank: int) -> int | None:
        """The number of the part of a target that a rank holds; None where nobody knows."""
        return self._of(target).parts.get(rank)

    def alike(self, target: str, rank: int) -> Sequence[int]:
        """The ranks known to hold the same as this one, the lowest first; itself where nobody knows."""
        return self._of(target).replicas.get(rank, [rank])

    def _of(self, target: str) -> _Held:
        return self._held.get(target) or self._held.get(target.rpartition(":")[0]) or _NOTHING


def first_of_each_step(tables: list[Any]) -> list[Any]:
    """Of tables that hold the same numbers, the rows of the first one that has a step."""
    kept: list[Any] = []
    seen = np.zeros(0, np.int64)
    for table in tables:
        steps = numbers(table.column("step"))
        is_new = ~np.isin(steps, seen)
        if is_new.any():
            kept.append(table if is_new.all() else take(table, np.flatnonzero(is_new)))
            seen = np.union1d(seen, steps)
    return kept
