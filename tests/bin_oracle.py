"""Distributions by numpy in float64, one element after the other in effect: shared by the tests that count bins."""

import numpy as np

from vario.core.elements.bins import EDGES, FIRST_CELL, IS_SPLIT, MINUS_INF, NAN, NUM_BINS, NUM_CELLS, PLUS_INF, ZERO
from watching import array


def counted(values, scale=1.0):
    """The distribution of an array or tensor divided by `scale`, from comparisons with the edges of the cells."""
    values = np.asarray(values if isinstance(values, np.ndarray) else array(values))
    with np.errstate(all="ignore"):
        values = np.abs(values.astype(np.complex128)) if np.iscomplexobj(values) else values.astype(np.float64)
        values = values.ravel() / scale
    counts = np.zeros(NUM_BINS, np.int64)
    counts[ZERO], counts[NAN] = (values == 0).sum(), np.isnan(values).sum()
    counts[MINUS_INF], counts[PLUS_INF] = np.isneginf(values).sum(), np.isposinf(values).sum()
    values = values[np.isfinite(values) & (values != 0)]
    magnitudes = np.abs(values)
    # How many edges lie below each: one that is split off belongs to the cell below it.
    below = sum(((magnitudes > edge) if split else (magnitudes >= edge)).astype(int) for edge, split in _EDGES)
    for cell in range(NUM_CELLS):
        counts[FIRST_CELL + 2 * cell] = ((below == cell) & (values < 0)).sum()
        counts[FIRST_CELL + 2 * cell + 1] = ((below == cell) & (values > 0)).sum()
    return counts


_EDGES = [(edge, split) for edge, split in zip(EDGES.tolist(), IS_SPLIT.tolist(), strict=True)][1:-1]

DELICATE = [0.0, -0.0, 448.0, -448.0, 448.00003, 449.0, 57_344.0, 57_345.0, 65_504.0, -65_505.0, 65_519.0, 65_536.0]
DELICATE += [float("inf"), float("-inf"), float("nan"), 1e-45, -1e-45, 2.0**-64, -(2.0**64), 2.0**-65, 3e38, 2.0**-126]
"""Numbers at the edges of bins."""


def odd_numbers(num, seed=0):
    """Numbers of all magnitudes, and those at the edges of bins."""
    generator = np.random.default_rng(seed)
    found = generator.standard_normal(num) * 2.0 ** generator.integers(-70, 70, num)
    places = generator.integers(0, max(num, 1), min(num, len(DELICATE)))
    found[places] = DELICATE[: len(places)]
    return found
