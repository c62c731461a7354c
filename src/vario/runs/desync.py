"""Ranks that should hold the same and do not: the first step and tensor whose checksums differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vario.runs.run import Run


@dataclass(frozen=True)
class Desync:
    """Where ranks that hold the same parameter began to differ."""

    step: int
    target: str
    """The parameter."""
    quantity: str
    """`weight` or `gradient`."""
    checksums: dict[int, int]
    """What each rank has, by rank."""

    @property
    def ranks(self) -> list[int]:
        """The ranks that hold something else than most do."""
        values = list(self.checksums.values())
        usual = max(values, key=lambda value: (values.count(value), -values.index(value)))
        return [rank for rank, value in self.checksums.items() if value != usual]


def first_desync(run: Run) -> Desync | None:
    """The first tensor, in time, that ranks known to hold alike hold differently; None while all agree."""
    tables = {rank: run.to_arrow("checksum", rank) for rank in run.ranks if "checksum" in run.quantities(rank)}
    seen: dict[tuple[int, str], dict[int, int]] = {}
    for rank, table in tables.items():
        columns = (table.column(name).to_numpy() for name in ("step", "order", "sum"))
        names = table.column("target").to_pylist()
        for step, _, value, name in sorted(zip(*columns, names, strict=True)):
            if not np.isnan(value):
                seen.setdefault((int(step), name), {})[rank] = int(value)
    # Dictionaries keep the order of insertion: gradients come before weights within a step.
    for (step, name), values in sorted(seen.items(), key=lambda item: item[0][0]):
        target, _, quantity = name.rpartition(":")
        for alike in run.holders(target):
            own = {rank: value for rank, value in values.items() if rank in alike}
            if len(set(own.values())) > 1:
                return Desync(step, target, quantity, own)
    return None
