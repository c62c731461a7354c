"""What rules remember: against a plain loop over one series at a time, and across saving."""

import math

import numpy as np
import pytest

from vario.rules.api.series_state import Last, Memory, Streak, Trend


def by_hand(values, linear=False, floor=0.02):
    """The same recurrence for one series, number by number."""
    level = fast = slow = dev = gap = usual_gap = peak = 0.0
    age, seen = 0, []
    for value in values:
        x = value if linear else (math.log(value) if value > 0 else math.nan)
        if not math.isfinite(x):
            seen.append((0.0, 0.0))
            continue
        if age == 0:
            level = fast = slow = x
        spread, distance, own = max(1.25 * dev, floor), x - level, 1 / (age + 1)
        seen.append((distance / spread, distance))
        cut = distance if age < 8 else min(max(distance, -3 * spread), 3 * spread)
        fast += max(1 / 8, own) * (x - fast)
        slow += max(1 / 64, own) * (x - slow)
        gap = abs(fast - slow)
        bounded = gap if age < 8 else min(gap, 3 * usual_gap + floor / 10)
        usual_gap += max(1 / 64, own) * (bounded - usual_gap)
        peak = 0.0 if age < 8 else max(0.998 * peak, min(abs(distance), 3 * max(peak, spread)))
        rate = max(0.03, own)
        level += rate * cut
        dev += rate * (abs(cut) - dev)
        age += 1
    return seen, {"level": level, "fast": fast, "slow": slow, "usual_gap": usual_gap, "peak": peak, "age": age}


@pytest.mark.parametrize("linear", [False, True])
def test_a_trend_of_many_series_is_that_of_each_by_hand(linear):
    generator = np.random.default_rng(0)
    table = np.exp(generator.normal(0, 0.3, (200, 5)))
    table[50, 0], table[60, 1], table[70, 2], table[80, 3] = np.nan, np.inf, 0.0, 1e9
    names = tuple("abcde")
    trend = Trend(linear=linear)
    found = [trend.update(names, row) for row in table]
    for column, name in enumerate(names):
        seen, state = by_hand(table[:, column], linear)
        for step, (z, distance) in enumerate(seen):
            assert found[step].z[column] == pytest.approx(z, rel=1e-9, abs=1e-9)
            assert found[step].distance[column] == pytest.approx(distance, rel=1e-9, abs=1e-9)
        row = trend.at((name,))[0]
        for field, value in state.items():
            assert trend[field][row] == pytest.approx(value, rel=1e-9, abs=1e-12)


def test_a_nan_an_inf_and_a_zero_leave_a_trend_as_it_was():
    trend = Trend()
    for _ in range(50):
        trend.update(("a",), np.array([2.0]), 7)
    before = {name: trend[name][0] for name in trend.fields}
    for bad in (np.nan, np.inf, 0.0, -1.0):
        deviation = trend.update(("a",), np.array([bad]), 8)
        assert deviation.z[0] == 0
    assert {name: trend[name][0] for name in trend.fields} == before


def test_one_outlier_moves_the_level_by_less_than_a_tenth_of_itself():
    trend = Trend()
    generator = np.random.default_rng(1)
    for value in np.exp(generator.normal(0, 0.1, 100)):
        trend.update(("a",), np.array([value]))
    spike = trend.update(("a",), np.array([1e6]))
    after = trend.update(("a",), np.array([1.0]))
    assert spike.z[0] > 50
    assert abs(after.z[0]) < 3


def test_series_that_come_and_go_keep_their_own_numbers():
    trend = Trend(linear=True)
    trend.update(("a", "b"), np.array([1.0, 2.0]))
    trend.update(("b",), np.array([2.0]))
    found = trend.update(("c", "b", "a"), np.array([5.0, 2.0, 1.0]))
    assert list(found.age) == [0, 2, 1]
    assert list(found.usual) == [5.0, 2.0, 1.0]


def test_thousands_of_new_names_get_room():
    streak = Streak()
    names = tuple(f"layer.{number}" for number in range(3000))
    streak.update(names[:10], np.ones(10, np.bool_))
    assert list(streak.update(names, np.ones(3000, np.bool_))[:12]) == [2.0] * 10 + [1.0] * 2
    assert streak.update(names, np.zeros(3000, np.bool_)).max() == 0


def test_the_last_value_comes_back_with_its_step():
    last = Last()
    value, step = last.swap(("a",), np.array([3.0]), 7)
    assert np.isnan(value[0])
    assert np.isnan(step[0])
    assert [found[0] for found in last.swap(("a",), np.array([4.0]), 9)] == [3.0, 7.0]


def test_what_is_saved_goes_on_as_if_nothing_had_happened(tmp_path):
    generator = np.random.default_rng(2)
    table = np.exp(generator.normal(0, 0.2, (120, 3)))
    names = ("x", "ü|y", "z")
    whole, first = Memory(), Memory()
    for row in table[:60]:
        for memory in (whole, first):
            memory.get("t", Trend()).update(names, row)
            memory.get("s", Streak()).update(names, row > 1)
    np.savez(tmp_path / "state.npz", **first.save())
    second = Memory()
    with np.load(tmp_path / "state.npz", allow_pickle=False) as saved:
        second.restore(dict(saved))
    for row in table[60:]:
        expected = whole.get("t", Trend()).update(names, row)
        found = second.get("t", Trend()).update(names, row)
        assert np.array_equal(expected.z, found.z)
        assert np.array_equal(expected.gap, found.gap)
        assert np.array_equal(
            whole.get("s", Streak()).update(names, row > 1), second.get("s", Streak()).update(names, row > 1)
        )


def test_what_nobody_asked_for_since_is_saved_again(tmp_path):
    memory = Memory()
    memory.get("t", Trend()).update(("a",), np.array([1.0]))
    later = Memory()
    later.restore(memory.save())
    assert later.save().keys() == memory.save().keys()


def test_one_name_means_one_kind_of_memory():
    memory = Memory()
    memory.get("t", Trend())
    with pytest.raises(TypeError, match="'t' is remembered as a Trend, not a Streak"):
        memory.get("t", Streak())


def test_a_series_watched_one_step_in_ten_is_known_after_ten_observations():
    trend, dense = Trend(), Trend()
    for number in range(10):
        assert trend.update(("a",), np.array([2.0]), 10 * number).warmth[0] == number
    assert trend.update(("a",), np.array([2.0]), 100).warmth[0] == 100
    for number in range(50):
        assert dense.update(("a",), np.array([2.0]), number).warmth[0] == number


@pytest.mark.parametrize("linear", [True, False])
def test_a_plain_number_is_followed_as_one_of_several_series_to_the_last_bit(linear):
    chance = np.random.default_rng(0)
    alone, among_others = Trend(linear), Trend(linear)
    for step in range(600):
        value = float(chance.lognormal(0, 2)) if step % 7 else float(chance.choice([np.nan, np.inf, 0.0, -1.0, 1e-300]))
        number = step if step % 5 else None
        one = alone.follow("x", value, number)
        both = among_others.update(("x", "y"), np.array([value, 1.0]), number)
        is_known = np.isfinite(value) and (linear or value > 0)
        assert (one is not None) == is_known
        if one is not None:
            for field in ("usual", "spread", "distance", "age", "warmth"):
                np.testing.assert_array_equal(getattr(one, field), getattr(both, field)[0], err_msg=f"{field}, {step}")
            assert one.fast - one.slow == both.gap[0]
        for field in Trend.fields:
            np.testing.assert_array_equal(alone[field][0], among_others[field][0], err_msg=f"{field}, {step}")


def test_a_plain_number_beyond_all_measure_is_neither_compared_nor_learnt():
    trend = Trend(linear=True)
    for step in range(20):
        trend.follow("x", 1.0, step)
    before = {field: trend[field][0] for field in trend.fields}
    for value in (1e200, -1e308, np.inf, np.nan):
        assert trend.follow("x", value, 20) is None
    assert {field: trend[field][0] for field in trend.fields} == before


def test_a_streak_and_a_last_number_of_one_name_are_those_of_many():
    streak, last = Streak(), Last()
    lengths = [streak.follow("a", is_true) for is_true in (True, True, False, True)]
    assert lengths == [1, 2, 0, 1]
    assert streak.update(("a", "b"), np.array([True, True])).tolist() == [2, 1]
    assert math.isnan(last.swap_one("a", 3.0, 7))
    values, steps = last.swap(("a",), np.array([4.0]), 9)
    assert (values.tolist(), steps.tolist()) == ([3.0], [7.0])
    assert last.swap_one("a", 5.0, 11) == 4.0
    assert last.read("step", ("a",)).tolist() == [11.0]


def test_one_field_of_a_series_beyond_the_first_sixteen() -> None:
    kept = Last()
    for index in range(100):
        assert math.isnan(kept.one("step", f"series {index}"))
        kept.swap_one(f"series {index}", float(index), 7)
    assert [kept.one("value", f"series {index}") for index in (0, 16, 99)] == [0.0, 16.0, 99.0]
