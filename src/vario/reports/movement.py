"""Targets whose norm changed most over a run, and tensors that jumped just before a NaN or Inf."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vario.runs.files.arrays import numbers
from vario.runs.files.listing_cache import listings_cached
from vario.runs.findings.onset import Onset
from vario.runs.run import Run

NUM_MOVERS = 5
LEAST_CHANGE = 0.01
"""A norm that changed by less than one per cent did not move."""
SMALL_SHARE = 0.05
"""Targets whose norm is below this share of the median are skipped."""
FRAMES_READ = 5
"""Frames read from each end of the run: enough for a median, and few for a run of any length."""
MOST_RANK_FRAMES = 256
"""Frames times ranks read from each end: of more than fifty ranks, fewer frames are read."""
JUMP_FACTOR = 1e3
"""A tensor this many times larger than one step before did not get that way by learning."""


@dataclass(frozen=True)
class Mover:
    """A target whose norm changed between the first and the last tenth of a run."""

    quantity: str
    target: str
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """The last norm divided by the first."""
        return self.after / self.before


@dataclass(frozen=True)
class Jump:
    """A tensor that was finite but suddenly very large."""

    step: int
    quantity: str
    target: str
    before: float
    """Its largest magnitude in the previous recorded step."""
    after: float


@listings_cached()
def find_movers(run: Run, before_step: int | None = None) -> list[Mover]:
    """Return the targets that moved most, weights if recorded, else gradients; only steps before `before_step`."""
    for quantity in ("weight", "gradient"):
        if quantity not in run.quantities("all"):
            continue
        steps = run.steps(quantity, "all")
        if before_step is not None:
            steps = steps[steps < before_step]
        if len(steps) < 2:
            continue
        tenth = max(1, len(steps) // 10)
        frames = max(1, min(FRAMES_READ, MOST_RANK_FRAMES // len(run.ranks)))
        before = _median_norms(run, quantity, _spread(steps[:tenth], frames))
        after = _median_norms(run, quantity, _spread(steps[-tenth:], frames))
        # The relative growth of a bias that starts at zero means nothing.
        floor = SMALL_SHARE * float(np.median(list(before.values())))
        movers = [
            Mover(quantity, target, before[target], norm)
            for target, norm in after.items()
            if before.get(target, 0.0) > floor and np.isfinite([before[target], norm]).all() and norm > 0
        ]
        movers = [mover for mover in movers if abs(np.log(mover.ratio)) > LEAST_CHANGE]
        return sorted(movers, key=lambda mover: -abs(np.log(mover.ratio)))[:NUM_MOVERS]
    return []


def find_jump(run: Run, onset: Onset) -> Jump | None:
    """Return the first tensor of the bad step that was still finite but a thousand times larger than before."""
    candidates: list[tuple[int, Jump]] = []
    limit = _order_of(run, onset)
    for quantity in run.quantities(onset.rank):
        steps = run.steps(quantity, onset.rank)
        earlier = steps[steps < onset.step]
        if quantity == "scalar" or onset.step not in steps or not len(earlier):
            continue
        usual = {target: size for _, target, size in _magnitudes(run, earlier[-1], quantity, onset.rank)}
        for order, target, size in _magnitudes(run, onset.step, quantity, onset.rank):
            before = usual.get(target, 0.0)
            if order < limit and np.isfinite(size) and 0 < before < size / JUMP_FACTOR:
                candidates.append((order, Jump(onset.step, quantity, target, before, size)))
    return min(candidates, key=lambda candidate: candidate[0])[1] if candidates else None


def _spread(steps: npt.NDArray[np.int64], most: int) -> Sequence[int]:
    last = len(steps) - 1
    chosen = np.unique(np.linspace(0, last, most).round().astype(np.int64)) if most > 1 else np.array([last // 2])
    return [int(step) for step in steps[chosen]]


def _median_norms(run: Run, quantity: str, steps: Sequence[int]) -> dict[str, float]:
    norms: dict[str, list[float]] = {}
    for step in steps:
        frame = run.frame(step, quantity, "all")
        squares = _column(frame, "sum_squares")
        for target, value in zip(frame.column("target").to_pylist(), squares, strict=True):
            norms.setdefault(target, []).append(float(value) ** 0.5)
    return {target: float(np.median(values)) for target, values in norms.items()}


def _order_of(run: Run, onset: Onset) -> float:
    if onset.quantity == "scalar":
        return float("inf")  # plain numbers are known at the end of the step
    frame = run.frame(onset.step, onset.quantity, onset.rank)
    rows = zip(*(frame.column(name).to_pylist() for name in ("target", "micro_step", "order")), strict=True)
    return min(float(order) for target, micro, order in rows if (target, micro) == (onset.target, onset.micro_step))


def _magnitudes(run: Run, step: int, quantity: str, rank: int) -> list[tuple[int, str, float]]:
    """Order, target and largest magnitude of each row that has one."""
    frame = run.frame(int(step), quantity, rank)
    sizes = np.maximum(np.abs(_column(frame, "min")), np.abs(_column(frame, "max")))
    rows = zip(frame.column("order").to_pylist(), frame.column("target").to_pylist(), sizes.tolist(), strict=True)
    return [row for row in rows if not np.isnan(row[2])]


def _column(frame: Any, name: str) -> npt.NDArray[np.float64]:
    column: npt.NDArray[np.float64] = numbers(frame.column(name).cast("double"))
    return column
