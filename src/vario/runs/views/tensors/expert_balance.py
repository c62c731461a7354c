"""How evenly the routers of a run distribute tokens over experts, and how sure they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vario.core.records import COUNT, MAX, MIN, SUM
from vario.core.text import number
from vario.runs.files.store_reader import summaries
from vario.runs.reader import RunReader

MOST_STEPS = 8
"""The last ones that count: single batches are uneven by chance."""


@dataclass(frozen=True)
class ExpertBalance:
    """Means over the last recorded steps, of the first rank that has routers."""

    max_vio: Mapping[str, float]
    """Of each router: the largest load less 1."""
    starved: tuple[str, ...]
    """Routers in which some expert got no token, in each of these steps."""
    dropped_share: float | None
    """Of the choices; None where no router says so."""
    entropy_share: float | None
    """Of the router's softmax, over its maximum; None if `router` was not recorded."""
    first_step: int
    last_step: int

    @property
    def text(self) -> str:
        """The balance in one line."""
        worst = max(self.max_vio, key=lambda name: self.max_vio[name])
        text = f"MaxVio {number(self.max_vio[worst], 3)} in '{worst}'"
        if len(self.max_vio) > 1:
            mean = float(np.mean([*self.max_vio.values()]))
            text += f", {number(mean, 3)} on average over {len(self.max_vio)} routers"
        if self.starved:
            text += f"; no tokens for some expert in {len(self.starved)} of them"
        if self.dropped_share:
            text += f"; {100 * self.dropped_share:.2g} % of choices dropped"
        if self.entropy_share is not None:
            text += f"; entropy {100 * self.entropy_share:.0f} % of its maximum"
        return f"{text} (steps {self.first_step} to {self.last_step})"


def read_expert_balance(run: RunReader) -> ExpertBalance | None:
    """Read the balance of experts; None if no router was recorded."""
    rank = next((rank for rank in run.ranks if "expert" in run.quantities(rank)), None)
    if rank is None:
        return None
    steps = [int(step) for step in run.steps("expert", rank)[-MOST_STEPS:]]
    vio: dict[str, list[float]] = {}
    counts: dict[str, float] = {}
    least: dict[str, float] = {}
    dropped: list[float] = []
    for step in steps:
        table = run.frame(step, "expert", rank)
        for target, row in zip(table["target"].to_pylist(), summaries(table), strict=True):
            name, _, what = target.rpartition(":")
            if what == "load" and row[COUNT]:
                vio.setdefault(name, []).append(float(row[MAX]) - 1)
                counts[name] = float(row[COUNT])
                least[name] = max(least.get(name, 0.0), float(row[MIN]))
            elif what == "dropped" and row[COUNT]:
                dropped.append(float(row[SUM] / row[COUNT]))
    if not vio:
        return None
    return ExpertBalance(
        max_vio={name: float(np.mean(values)) for name, values in vio.items()},
        starved=tuple(name for name, smallest in least.items() if smallest == 0),
        dropped_share=float(np.mean(dropped)) if dropped else None,
        entropy_share=_entropy_share(run, rank, counts),
        first_step=steps[0],
        last_step=steps[-1],
    )


def _entropy_share(run: RunReader, rank: int, counts: Mapping[str, float]) -> float | None:
    """The mean over routers of entropy over the logarithm of the number of experts, at the last recorded step."""
    if "router" not in run.quantities(rank) or not len(run.steps("router", rank)):
        return None
    table = run.frame(int(run.steps("router", rank)[-1]), "router", rank)
    found = []
    for target, row in zip(table["target"].to_pylist(), summaries(table), strict=True):
        name, _, what = target.rpartition(":")
        if what == "entropy" and row[COUNT] and counts.get(name, 0.0) > 1:
            found.append(float(row[SUM] / row[COUNT]) / np.log(counts[name]))
    return float(np.mean(found)) if found else None
