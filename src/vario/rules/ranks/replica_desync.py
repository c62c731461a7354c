"""Replicas that differ between ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from vario.rules import Finding, RanksStep, rule


@rule("exact", over="ranks", needs="checksum")
def replica_desync(step: RanksStep) -> Iterator[Finding]:
    """A replicated weight or reduced gradient that differs between ranks.

    Why: data-parallel training requires bit-identical replicas. One that differs trains a different model and affects
    the others.

    Cause: this rank's copy diverged: a missed reduction, a faulty device, or code that only this rank runs

    Points to: ranks 4, hardware 2

    Next: Look for code or collectives that only some ranks run. If there are none, check the device of the rank named.
    """
    sums: dict[str, dict[int, float]] = {}
    orders: dict[str, float] = {}
    for rank in step.ranks:
        rows = step.steps[rank].rows("checksum")
        for target, value, order in zip(rows.targets, rows.statistic("max"), rows.order, strict=True):
            sums.setdefault(target, {})[rank] = float(value)
            orders.setdefault(target, float(order))
    different = [(orders[target], target) for target, held in sums.items() if len(set(held.values())) > 1]
    told = 0
    for order, target in sorted(different):
        held, name = sums[target], target.rpartition(":")[0]
        for group in {tuple(sorted(set(step.alike(name, rank)) & held.keys())) for rank in held}:
            values = [held[rank] for rank in group if not np.isnan(held[rank])]
            if len(set(values)) < 2 or told >= 16:
                continue
            told += 1
            usual, votes = Counter(values).most_common(1)[0]
            off = [rank for rank in group if held[rank] != usual]
            is_clear = votes > len(group) / 2
            what = "rank " + ", ".join(map(str, off)) if is_clear else "ranks " + ", ".join(map(str, group))
            yield Finding(
                text=f"{target.rpartition(':')[2]} of '{name}' on {what} differs from "
                + ("the other ranks" if is_clear else "each other"),
                quantity="checksum",
                target=name,
                scope="rank" if is_clear and len(off) == 1 else "tensor",
                rank=off[0] if is_clear and len(off) == 1 else None,
                order=order,
                strength=1e6 / (1 + told),
                others=tuple(other.rpartition(":")[0] for _, other in sorted(different)[:16]),
            )
