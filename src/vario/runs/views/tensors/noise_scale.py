"""The gradient noise scale of a run that accumulates gradients, from their norm after the first and the last pass.

After k of K micro-batches of b rows the squared norm of the sum of their gradients is on average k^2 |G|^2 + k S / b:
|G| is the norm of the true gradient and S the trace of the covariance of a single row's. So the norms after the first
and the last backward pass tell both. S / |G|^2 is the noise scale: batches of about that many rows are large enough
that more of them help little (arXiv 1812.06162).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from vario.core.text import number
from vario.runs.reader import RunReader
from vario.runs.views.speed.throughput import SAMPLES

Values = npt.NDArray[np.float64]

LEAST_STEPS = 16
MOST_STEPS = 1024
"""The last ones that count."""
FIRST, LAST, NUM = "micro_norm_first", "micro_norm_last", "micro_passes"
CERTAIN = 2.0
"""Standard errors that a gradient has to be away from none."""


@dataclass(frozen=True)
class NoiseScale:
    """The noise scale over the last steps that recorded norms after their first and last backward pass."""

    scale: float | None
    """In rows of the batch, or in micro-batches if their rows are not known; None if the noise hides the gradient."""
    error: float | None
    """Its standard error, by leaving out each step in turn."""
    batch: float
    """The batch of a step, in the same unit."""
    unit: str
    micro_steps: int
    num_steps: int

    @property
    def text(self) -> str:
        """The noise scale in one line."""
        source = f"from {self.num_steps} steps of {self.micro_steps} micro-batches"
        batch = f"the batch is {number(self.batch, 3)}"
        if self.scale is None or self.error is None:
            return f"far above the batch of {number(self.batch, 3)} {self.unit}: noise hides the gradient ({source})"
        return f"about {number(self.scale, 2)} {self.unit} (+- {number(self.error, 2)}), {batch} ({source})"


def read_noise_scale(run: RunReader) -> NoiseScale | None:
    """Read the noise scale of a run on one rank; None without accumulation, or with too few steps."""
    if len(run.ranks) != 1 or run.world_size > 1 or "scalar" not in run.quantities(run.ranks[0]):
        return None
    rank = run.ranks[0]
    if not {FIRST, LAST, NUM} <= set(run.targets("scalar", rank=rank)):
        return None
    # All three are of the same steps.
    first, last, num = (run.series(name, "scalar", rank=rank).values[-MOST_STEPS:] for name in (FIRST, LAST, NUM))
    usual = int(num[-1])
    chosen = (num == usual) & np.isfinite(first) & np.isfinite(last)
    squares = np.stack([first[chosen], last[chosen]], axis=1) ** 2
    return noise_scale(squares, usual, _rows(run, rank, usual))


def noise_scale(squares: Values, num: int, rows: float | None = None) -> NoiseScale | None:
    """Estimate it from squared norms after the first and the last of `num` passes, by step, of so many rows each."""
    num_steps = len(squares)
    if num < 2 or num_steps < LEAST_STEPS:
        return None
    first, last = squares.T
    gradient = (last - num * first) / (num * num - num)
    noise = first - gradient
    unit, size = ("micro-batches", 1.0) if rows is None else ("samples", rows)
    unknown = NoiseScale(None, None, num * size, unit, num, num_steps)
    standard = float(gradient.std(ddof=1)) / np.sqrt(num_steps)
    if not gradient.mean() > CERTAIN * standard:
        return unknown
    without = (noise.sum() - noise) / (gradient.sum() - gradient)
    error = np.sqrt((num_steps - 1) / num_steps * ((without - without.mean()) ** 2).sum())
    scale = max(0.0, float(noise.mean() / gradient.mean()))
    return replace(unknown, scale=scale * size, error=float(error) * size)


def _rows(run: RunReader, rank: int, num: int) -> float | None:
    """The rows of one micro-batch, if they are always as many."""
    if SAMPLES not in run.targets("scalar", rank=rank):
        return None
    seen = run.series(SAMPLES, "scalar", rank=rank)
    gains = np.diff(seen.values)[np.diff(seen.steps) == 1]
    return float(gains[-1]) / num if len(gains) and (gains == gains[-1]).all() else None
