"""The cost of watching, and how often quantities are watched to stay within the budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vario.runs.reader import RunReader

MEASURED = "overhead"
INTERVAL = "interval/"


@dataclass(frozen=True)
class Overhead:
    """The measured cost of a run that has a budget, and the intervals in force at its end."""

    share: float
    """Share of the step time: the median of the measurements, without the first steps."""
    budget: float | None
    every: Mapping[str, int]
    """The interval of each quantity."""
    stretched: Mapping[str, int]
    """Those that are longer than usual."""

    @property
    def text(self) -> str:
        """The overhead in one line."""
        budget = "" if self.budget is None else f" (budget {100 * self.budget:.3g} %)"
        text = f"{100 * self.share:.2g} % of the step time{budget}"
        if self.stretched:
            text += ": " + ", ".join(f"{name} every {every} steps" for name, every in self.stretched.items())
        return text


def intervals(run: RunReader, rank: int) -> dict[str, int]:
    """Return the last interval of each quantity."""
    configured = run.config.get("every") or {}
    every = dict(configured) if isinstance(configured, Mapping) else {}
    if "scalar" not in run.quantities(rank):
        return every
    for target in run.targets("scalar", rank=rank):
        if target.startswith(INTERVAL):
            values = run.series(target, "scalar", rank=rank).values
            if len(values) and np.isfinite(values[-1]):
                every[target.removeprefix(INTERVAL)] = int(values[-1])
    return every


def read_overhead(run: RunReader) -> Overhead | None:
    """Read the overhead of a run, as measured on its first rank; None if nothing was measured."""
    ranks = run.ranks
    if not ranks or "scalar" not in run.quantities(ranks[0]) or MEASURED not in run.targets("scalar", rank=ranks[0]):
        return None
    measured = run.series(MEASURED, "scalar", rank=ranks[0]).values
    later = measured[1:] if len(measured) > 1 else measured
    budget = run.config.get("overhead")
    usual = run.config.get("every") or {}
    every = intervals(run, ranks[0])
    stretched = {name: found for name, found in every.items() if found > usual.get(name, found)}
    return Overhead(
        float(np.nanmedian(later)), float(budget) if isinstance(budget, (int, float)) else None, every, stretched
    )
