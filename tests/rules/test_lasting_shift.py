"""The quick look that decides whether a series is worth comparing with its own line."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from vario.rules.api.lasting_shift import KEPT, LATELY, lasting_shift, may_have_shifted

SHARE, THRESHOLD = 0.1, 7.0


def _series(kind: str, draw: np.random.Generator) -> npt.NDArray[np.float64]:
    noise = draw.normal(size=len(KEPT)) * 10 ** draw.uniform(-3, 0)
    values = noise + draw.uniform(0.5, 5) + np.linspace(draw.uniform(0, 3), 0, len(KEPT))
    if kind in ("shifted", "spikes"):
        values[-draw.integers(3, LATELY + 1) :] += draw.normal() * 10 ** draw.uniform(-2, 1)
    if kind == "spikes":
        values[draw.integers(0, len(KEPT), 3)] += draw.normal() * 10
    if kind == "wanders":
        values = np.cumsum(draw.normal(size=len(KEPT))) * 0.1 + 3
    if kind == "begins":
        values[: draw.integers(0, 16)] = np.nan
    if kind == "gaps":
        values[draw.integers(0, len(KEPT) - LATELY, 4)] = np.nan
    return values


@pytest.mark.parametrize("kind", ["shifted", "spikes", "wanders", "begins", "gaps"])
def test_the_quick_look_hides_no_shift(kind: str) -> None:
    draw, num_found = np.random.default_rng(0), 0
    for _ in range(1500):
        values = _series(kind, draw)
        found = lasting_shift(values, THRESHOLD)
        if found is not None and abs(found.size) > SHARE * found.level:
            num_found += 1
            assert may_have_shifted(values.tolist(), None, SHARE, THRESHOLD), values
    assert num_found or kind not in ("shifted", "spikes")


def test_noise_is_mostly_settled_by_the_quick_look() -> None:
    draw = np.random.default_rng(1)
    looks = [
        may_have_shifted((1 + 0.3 * draw.normal(size=len(KEPT))).tolist(), None, SHARE, THRESHOLD) for _ in range(500)
    ]
    assert sum(looks) < 0.15 * len(looks)
