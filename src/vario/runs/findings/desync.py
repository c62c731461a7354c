"""Replicas that differ between ranks: the first step and tensor whose checksums differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vario.runs.files.arrays import numbers
from vario.runs.files.listing_cache import listings_cached
from vario.runs.reader import RunReader

_MOST_STEPS = 2**40


@dataclass(frozen=True)
class Desync:
    """Where replicas of a parameter began to differ."""

    step: int
    target: str
    """The parameter."""
    quantity: str
    """`weight` or `gradient`."""
    checksums: dict[int, int]
    """The checksum of each rank."""

    @property
    def ranks(self) -> list[int]:
        """The ranks that differ from the majority."""
        values = list(self.checksums.values())
        usual = max(values, key=lambda value: (values.count(value), -values.index(value)))
        return [rank for rank, value in self.checksums.items() if value != usual]


@listings_cached()
def first_desync(run: RunReader) -> Desync | None:
    """Return the first replicated tensor that differs between ranks; None if all agree."""
    ranks = [rank for rank in run.ranks if "checksum" in run.quantities(rank)]
    layout = run.layout
    seen: dict[tuple[str, int], int] = {}
    # By tensor and step: the value of the first rank of a group that has it. Each other rank is compared with it.
    known = np.zeros(0, np.int64)
    usual = np.zeros(0, np.float64)
    first: tuple[int, int, str, int] | None = None
    for rank in ranks:
        table = run.columns("checksum", ["step", "order", "target", "sum"], rank)
        steps, orders, values = (numbers(table.column(name)) for name in ("step", "order", "sum"))
        target = table.column("target").combine_chunks()
        names = target.dictionary.to_pylist()
        # Groups are identified by their lowest rank.
        groups = [(name, layout.alike(name, rank)[0]) for name in names]
        own = np.array([seen.setdefault(group, len(seen)) for group in groups], np.int64)
        codes = numbers(target.indices)
        keys = own[codes] * _MOST_STEPS + steps
        places = np.minimum(np.searchsorted(known, keys), max(len(known) - 1, 0))
        is_known = known[places] == keys if len(known) else np.zeros(len(keys), np.bool_)
        if is_known.any():
            rows = np.flatnonzero(is_known)
            rows = rows[usual[places[rows]] != values[rows]]
            if len(rows):
                row = rows[np.lexsort((orders[rows], steps[rows]))[0]]
                found = int(steps[row]), int(orders[row]), names[codes[row]], rank
                first = found if first is None else min(first, found)
        if not is_known.all():
            known = np.concatenate([known, keys[~is_known]])
            usual = np.concatenate([usual, values[~is_known]])
            order = np.argsort(known, kind="stable")
            known, usual = known[order], usual[order]
    return None if first is None else _all_say(run, ranks, *first)


def _all_say(run: RunReader, ranks: list[int], step: int, order: int, name: str, rank: int) -> Desync:
    target, _, quantity = name.rpartition(":")
    checksums = {}
    for other in run.layout.alike(name, rank):
        if other in ranks:
            series = run.series(name, "checksum", "mean", rank=other)
            if len(found := series.values[series.steps == step]):
                checksums[other] = int(found[0])
    return Desync(step, target, quantity, checksums)
