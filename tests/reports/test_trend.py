import numpy as np
import pytest

from vario.logs.history import Curve
from vario.reports.trend import find_trend, theil_sen


def curve(values, steps=None):
    values = np.asarray(values, np.float64)
    steps = np.arange(1, len(values) + 1) if steps is None else np.asarray(steps)
    return Curve(steps, values, np.full(len(values), np.nan), np.full(len(values), np.nan))


def test_a_straight_line_has_its_slope_and_no_error():
    trend = find_trend(curve(10 - 0.5 * np.arange(20), steps=np.arange(20) * 10))
    assert trend.direction == "falling"
    assert (trend.slope_per_step, trend.low, trend.high) == pytest.approx((-0.05, -0.05, -0.05))


def test_two_wild_points_do_not_turn_the_trend():
    values = 3 - 0.02 * np.arange(40)
    values[[-1, -7]] = 500.0
    assert find_trend(curve(values)).direction == "falling"


def test_noise_is_called_flat_about_as_often_as_the_error_bar_promises():
    random = np.random.default_rng(0)
    found = [find_trend(curve(random.normal(3, 0.1, size=40))).direction for _ in range(500)]
    assert 0.92 <= found.count("flat") / len(found) <= 0.98


def test_a_slope_in_noise_lies_within_its_error_bar():
    random = np.random.default_rng(1)
    steps = np.arange(50.0)
    limits = [theil_sen(steps, 0.01 * steps + random.normal(size=50))[1:] for _ in range(300)]
    assert 0.92 <= np.mean([low <= 0.01 <= high for low, high in limits]) <= 0.99


def test_only_the_last_quarter_of_a_long_run_counts():
    values = np.concatenate([np.linspace(9, 1, 3000), np.full(1000, 1.0) + 0.01 * np.sin(np.arange(1000))])
    trend = find_trend(curve(values))
    assert (trend.direction, trend.first_step, trend.num_points) == ("flat", 3001, 1000)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_few_points_have_no_trend(count):
    assert find_trend(curve([3.0] * count)) is None


def test_five_equal_points_are_flat():
    assert find_trend(curve([3.0] * 5)).direction == "flat"
