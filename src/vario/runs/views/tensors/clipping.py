"""How often gradients are clipped, and by how much."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vario.core.text import number
from vario.runs.reader import RunReader

Values = npt.NDArray[np.float64]
NORM, LIMIT = "clip_norm", "clip_limit"


@dataclass(frozen=True)
class Clipping:
    """Clipping over the steps in which the norm was recorded."""

    num_steps: int
    num_clipped: int
    limit: float
    """The latest."""
    usual_factor: float | None
    """Norm over limit: the median of clipped steps; None if none was clipped."""
    largest_factor: float | None
    largest_step: int | None

    @property
    def text(self) -> str:
        """Clipping in one line."""
        share = f"{100 * self.num_clipped / self.num_steps:.3g} % of {self.num_steps:,} steps clipped"
        text = f"{share} to norm {number(self.limit)}"
        if self.usual_factor is None or self.largest_factor is None:
            return text
        usual, most = number(self.usual_factor, 3), number(self.largest_factor, 3)
        return f"{text}, usually by {usual} times, at most by {most} at step {self.largest_step}"


def read_clipping(run: RunReader, rank: int | None = None) -> Clipping | None:
    """Read the clipping of a rank (default: the first); None if there is none."""
    rank = next(iter(run.ranks), None) if rank is None else rank
    if rank is None or "scalar" not in run.quantities(rank):
        return None
    if not {NORM, LIMIT} <= set(run.targets("scalar", rank=rank)):
        return None
    norms, limits = (run.series(name, "scalar", rank=rank) for name in (NORM, LIMIT))
    steps, here, there = np.intersect1d(norms.steps, limits.steps, return_indices=True)
    return clipping_of(steps, norms.values[here], limits.values[there])


def clipping_of(steps: npt.NDArray[np.int64], norms: Values, limits: Values) -> Clipping | None:
    """Return what was clipped in these steps; None without any."""
    with np.errstate(all="ignore"):
        factors = np.where(limits > 0, norms / limits, np.nan)
    known = np.isfinite(factors)
    if not known.any():
        return None
    clipped = np.flatnonzero(known & (factors > 1))
    most = clipped[factors[clipped].argmax()] if len(clipped) else None
    return Clipping(
        num_steps=int(known.sum()),
        num_clipped=len(clipped),
        limit=float(limits[known][-1]),
        usual_factor=float(np.median(factors[clipped])) if len(clipped) else None,
        largest_factor=None if most is None else float(factors[most]),
        largest_step=None if most is None else int(steps[most]),
    )
