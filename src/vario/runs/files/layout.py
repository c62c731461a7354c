"""Which rank has which part of a parameter, from the `structure.json` of all ranks: shards add up, replicas count
once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np

from vario.core.records import Structure
from vario.runs.files.arrays import numbers, take

MANY_REPLICAS = 16
"""Of more ranks that have the same, one is read only for steps before or after those already read."""


@dataclass
class _Held:
    """Which rank has which part of one parameter."""

    numbers: dict[str, int] = field(default_factory=dict)
    """By part: its number."""
    parts: dict[int, int] = field(default_factory=dict)
    """By rank: the number of the part it has."""
    replicas: dict[int, Sequence[int]] = field(default_factory=dict)
    """By rank: the ranks known to have the same part."""

    @cached_property
    def left_out(self) -> frozenset[int]:
        """Ranks whose tensor is not counted, since a lower rank has the same part."""
        first: dict[int, int] = {}
        for rank in sorted(self.parts):
            first.setdefault(self.parts[rank], self.replicas[rank][0])
        return frozenset(rank for rank, part in self.parts.items() if self.replicas[rank][0] != first[part])


def _strangers(held: _Held) -> list[list[int]]:
    if not held.left_out:
        return []
    groups: dict[tuple[int, int], list[int]] = {}
    for rank in sorted(held.parts):
        # Groups are disjoint, so the lowest rank identifies each.
        groups.setdefault((held.parts[rank], held.replicas[rank][0]), []).append(rank)
    divided = {held.parts[rank] for rank in held.left_out}
    return [ranks for (part, _), ranks in groups.items() if part in divided]


_NOTHING = _Held()


class Layout:
    """Groups the ranks of a run by the part of a parameter they have."""

    def __init__(self, ranks: Iterable[int], structure: Callable[[int], Structure]) -> None:
        self._held: dict[str, _Held] = {}
        self._num_read = 0
        told_of: set[int] = set()
        for rank in sorted(ranks):
            # With a thousand ranks under DDP the first one describes all: read nothing else.
            if rank not in told_of:
                self._num_read += 1
                told_of |= self._read(rank, structure(rank).get("parameters") or [])

    def _read(self, rank: int, parameters: Iterable[Mapping[str, Any]]) -> set[int]:
        """Record what one rank has; returns the ranks that have the same parts of everything."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for parameter in parameters:
            told = tuple(parameter.get("replicas") or ())
            alike = groups.setdefault(told, sorted(told))
            held = self._held.setdefault(str(parameter.get("name")), _Held())
            part = held.numbers.setdefault(f"{parameter.get('box')} {parameter.get('range')}", len(held.numbers))
            for other in alike:
                held.parts.setdefault(other, part)
                held.replicas.setdefault(other, alike)
            # A rank's own entry counts: what others say about it may predate a resume.
            held.parts[rank] = part
            held.replicas[rank] = alike or [rank]
        return set.intersection(*map(set, groups)) if groups else set()

    def holders(self, target: str) -> list[list[int]]:
        """Return the ranks that have each distinct part of a target, a parameter or one of its moments.

        Ranks with the same part are replicas, or models that train independently: either way the part counts once.
        """
        held = self._of(target)
        found: list[list[int]] = [[] for _ in held.numbers]
        for rank in sorted(held.parts):
            found[held.parts[rank]].append(rank)
        return [ranks for ranks in found if ranks]

    def strangers(self, target: str) -> list[list[int]]:
        """Return groups of ranks that have the same part of a target but are not known to be replicas of each other.

        Empty if all ranks with a part are replicas, or if the ranks share the target as recorded.
        """
        return _strangers(self._of(target))

    def counted(self, target: str, rank: int) -> int | None:
        """Like `part`, but -1 if the rank's tensor is not counted because an unrelated lower rank has that part."""
        held = self._of(target)
        part = held.parts.get(rank)
        return -1 if part is not None and rank in held.left_out else part

    @cached_property
    def has_strangers(self) -> bool:
        """Whether ranks have tensors with the same name that are not known to be the same."""
        return self._num_read > 1 and any(_strangers(held) for held in self._held.values())

    def part(self, target: str, rank: int) -> int | None:
        """Return the number of the part of a target that a rank has; None if unknown."""
        return self._of(target).parts.get(rank)

    def alike(self, target: str, rank: int) -> Sequence[int]:
        """Return the ranks known to have the same as this one, lowest first; only itself if unknown."""
        return self._of(target).replicas.get(rank, [rank])

    def _of(self, target: str) -> _Held:
        return self._held.get(target) or self._held.get(target.rpartition(":")[0]) or _NOTHING


class _Reader(Protocol):
    def span(self, sessions: Sequence[Mapping[str, Any]]) -> tuple[int, int] | None:
        """Return the first and the newest step."""


Reader = TypeVar("Reader", bound=_Reader)


def of_replicas(
    readers: Sequence[Reader], sessions: Sequence[Mapping[str, Any]], read: Callable[[Reader], Any]
) -> Iterator[Any]:
    """Yield the rows of ranks that have the same; of very many, only those that may add steps."""
    covered: tuple[int, int] | None = None
    for reader in readers:
        span = reader.span(sessions) if len(readers) > MANY_REPLICAS else None
        if covered and span and covered[0] <= span[0] and span[1] <= covered[1]:
            continue
        table = read(reader)
        if span and table.num_rows:
            covered = (min(span[0], covered[0]), max(span[1], covered[1])) if covered else span
        yield table


def first_of_each_step(tables: Iterable[Any]) -> list[Any]:
    """Merge tables with the same numbers: for each step, the rows of the first table that has it."""
    kept: list[Any] = []
    seen = np.zeros(0, np.int64)
    for table in tables:
        steps = numbers(table.column("step"))
        is_new = ~np.isin(steps, seen)
        if is_new.any():
            kept.append(table if is_new.all() else take(table, np.flatnonzero(is_new)))
            seen = np.union1d(seen, steps)
    return kept
