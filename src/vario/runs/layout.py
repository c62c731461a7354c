"""Which rank holds what of a parameter, from the `structure.json` of all ranks: shares add up, replicas count once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vario.records import Structure


class Layout:
    """Groups the ranks of a run by the part of a parameter they hold."""

    def __init__(self, structures: Mapping[int, Structure]) -> None:
        self._holders: dict[str, dict[str, list[int]]] = {}
        for rank in sorted(structures):
            for parameter in structures[rank].get("parameters") or []:
                parts = self._holders.setdefault(str(parameter.get("name")), {})
                parts.setdefault(_part(parameter), []).append(rank)
                for other in parameter.get("replicas") or []:
                    if other not in parts[_part(parameter)]:
                        parts[_part(parameter)].append(int(other))

    def holders(self, target: str) -> list[list[int]]:
        """The ranks that hold each distinct part of a target, be it a parameter or a moment of one."""
        parts = self._holders.get(target) or self._holders.get(target.rpartition(":")[0]) or {}
        return [sorted(ranks) for ranks in parts.values()]

    def alike(self, target: str, rank: int) -> list[int]:
        """The ranks that hold the same as this one, the lowest first; itself where nobody knows."""
        return next((ranks for ranks in self.holders(target) if rank in ranks), [rank])


def first_of_each_step(tables: list[Any]) -> list[Any]:
    """Of tables that hold the same numbers, the rows of the first one that has a step."""
    kept: list[Any] = []
    seen = np.zeros(0, np.int64)
    for table in tables:
        steps = table.column("step").to_numpy()
        is_new = ~np.isin(steps, seen)
        if is_new.any():
            kept.append(table if is_new.all() else table.take(np.flatnonzero(is_new)))
            seen = np.union1d(seen, steps)
    return kept


def _part(parameter: Mapping[str, Any]) -> str:
    return f"{parameter.get('box')} {parameter.get('range')}"
