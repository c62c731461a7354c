import numpy as np
import pytest

from vario.runs.views.downsample import downsample


def test_few_points_stay_as_they_are():
    steps, values = np.arange(10), np.random.default_rng(0).normal(size=10)
    kept_steps, kept_values = downsample(steps, values, 10)
    assert kept_steps.tolist() == steps.tolist()
    assert kept_values.tolist() == values.tolist()


@pytest.mark.parametrize("max_points", [1, 4, 7, 100, 999])
@pytest.mark.parametrize("seed", range(5))
def test_ends_extremes_and_everything_not_finite_are_kept(seed, max_points):
    chance = np.random.default_rng(seed)
    steps = np.sort(chance.choice(10**6, 1000, replace=False))
    values = chance.normal(size=1000)
    bad = chance.choice(1000, 5, replace=False)
    values[bad] = [np.nan, np.inf, -np.inf, np.nan, np.inf]
    kept_steps, kept_values = downsample(steps, values, max_points)
    assert (np.diff(kept_steps) > 0).all()
    finite = values[np.isfinite(values)]
    kept_finite = kept_values[np.isfinite(kept_values)]
    assert (kept_finite.min(), kept_finite.max()) == (finite.min(), finite.max())
    assert set(steps[bad]) <= set(kept_steps)
    assert (kept_steps[0], kept_steps[-1]) == (steps[0], steps[-1])
    assert len(kept_steps) <= max(max_points, 6) + 5 + 2
    np.testing.assert_array_equal(kept_values, values[np.searchsorted(steps, kept_steps)])


def test_each_bucket_keeps_its_own_lowest_and_highest():
    values = np.zeros(400)
    values[150], values[350] = 5.0, -5.0
    steps, kept = downsample(np.arange(400), values, 16)
    assert {150, 350} <= set(steps)
    assert len(kept) <= 18


def test_nothing_but_nans_is_kept_whole():
    steps, _ = downsample(np.arange(50), np.full(50, np.nan), 10)
    assert len(steps) == 50
