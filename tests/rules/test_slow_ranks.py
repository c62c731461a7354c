"""Which rank the others wait for: what lasts and matters is told, and noise is not."""

import numpy as np
import pytest
from courses import Course

PARTS = {"update_seconds": 0.02, "wait_seconds": 0.01, "forward_seconds": 0.1, "backward_seconds": 0.2}


def told(times, ranks=2, steps=200, seed=0, spread=0.02):
    """What the rule says of ranks whose parts take these times: `times(step, rank, chance)` changes the usual ones."""
    course, chance = Course(["straggler"], ranks=ranks), np.random.default_rng(seed)
    said = []
    for step in range(steps):
        found = []
        for rank in range(ranks):
            usual = {name: seconds * np.exp(chance.normal(0, spread)) for name, seconds in PARTS.items()}
            found.append({**usual, "step_seconds": 0.4, **times(step, rank, chance)})
        said += course.step_of_ranks([[]] * ranks, found)
    return said


def of_all(milliseconds, scale=1.0):
    """Parts of a small step, in milliseconds."""
    return {name: scale * seconds / 1e3 for name, seconds in milliseconds.items()}


@pytest.mark.parametrize("ranks", [2, 4])
def test_six_percent_of_four_milliseconds_are_nothing(ranks):
    small = {"update_seconds": 0.1, "wait_seconds": 0.4, "forward_seconds": 3.87, "backward_seconds": 4.0}

    def times(step, rank, chance):
        return {**of_all(small, 1.062 if rank == 0 else 1.0), "step_seconds": 0.009}

    assert not told(times, ranks)


def test_a_rank_that_waits_for_data_is_named_whatever_a_few_percent_of_forward_say():
    def times(step, rank, chance):
        forward = 4.11e-3 if rank == 0 else 3.87e-3
        return {"forward_seconds": forward, "wait_seconds": 0.121 if rank == 1 else 4e-4, "step_seconds": 0.15}

    [alert] = told(times)
    assert (alert.rank, alert.target) == (1, "wait_seconds")
    assert "121 ms, on the others 400 us" in alert.text
    assert "data arrives late" in alert.cause


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_ranks_that_vary_by_a_third_are_alike(ranks, seed):
    assert not told(lambda step, rank, chance: {}, ranks, 400, seed, spread=0.33)


def test_what_takes_turns_is_noise():
    def times(step, rank, chance):
        # Another program sits on the processor of one rank for ten steps, then on that of the other.
        return {"forward_seconds": 0.2 if (step // 10) % 2 == rank else 0.1}

    assert not told(times, steps=400)


def test_a_long_first_step_is_no_news():
    assert not told(lambda step, rank, chance: {"forward_seconds": 20.0} if step == 0 and rank == 1 else {})


def test_a_pause_now_and_then_is_no_news():
    # A checkpoint, which one rank writes.
    assert not told(lambda step, rank, chance: {"wait_seconds": 3.0} if step % 50 == 0 and rank == 0 else {})


def test_steps_of_two_milliseconds_are_watched_for_seconds():
    # Of 200 steps 190 show it, but it is over in half a second: the rows carry the time of a wall clock.
    course = Course(["straggler"], ranks=2)
    said = []
    for step in range(400):
        course.number = step
        found = [
            {"forward_seconds": 0.012 if rank and 100 <= step < 300 else 0.002, "step_seconds": 0.012}
            for rank in (0, 1)
        ]
        said += course.step_of_ranks([[]] * 2, found, time=0.002 * step)
    assert not said


def test_batches_that_are_late_all_at_once():
    # Three workers that load slowly: their batches come together, so two steps of three wait for nothing.
    def times(step, rank, chance):
        return {"wait_seconds": 0.3 if step % 3 == 0 else 1e-3} if rank == 1 else {"wait_seconds": 1e-3}

    alerts = told(times)
    assert {(alert.rank, alert.target) for alert in alerts} == {(1, "wait_seconds")}
    assert len(alerts) == 1


def test_of_four_ranks_two_are_slow():
    def times(step, rank, chance):
        slow = {1: {"forward_seconds": 0.2}, 3: {"backward_seconds": 0.35}}
        return slow.get(rank, {}) if step >= 60 else {}

    found = {alert.rank: (alert.target, alert.began) for alert in told(times, 4)}
    assert found == {1: ("forward_seconds", 60), 3: ("backward_seconds", 60)}


def test_what_one_rank_does_between_steps_does_not_hide_another_that_is_slow_in_forward():
    def times(step, rank, chance):
        return {0: {"wait_seconds": 0.035}, 2: {"forward_seconds": 0.12}}.get(rank, {}) | {"step_seconds": 0.2}

    assert {(alert.rank, alert.target) for alert in told(times, 4, spread=0.01)} == {(2, "forward_seconds")}


@pytest.mark.parametrize("slow", [True, False])
def test_ranks_that_measure_some_steps_each_and_not_the_same(slow):
    course, chance = Course(["straggler"], ranks=3), np.random.default_rng(0)
    said = []
    for step in range(600):
        found = []
        for rank in range(3):
            seconds = (0.15 if slow and rank == 1 and step >= 200 else 0.1) * np.exp(chance.normal(0, 0.1))
            is_measured = chance.random() < 0.25
            found.append({"step_seconds": 0.3, **({"forward_seconds": seconds} if is_measured else {})})
        said += course.step_of_ranks([[]] * 3, found)
    assert [alert.rank for alert in said] == ([1] if slow else [])
    assert all(195 <= alert.began <= 215 for alert in said)


def test_the_limits_can_be_set():
    course = Course({"straggler": {"share": 0.5}}, ranks=2)
    for _ in range(100):
        course.step_of_ranks(
            [[]] * 2, [{"forward_seconds": 0.2 if rank else 0.1, "step_seconds": 0.3} for rank in (0, 1)]
        )
    assert not [alert for alert in course.alerts if alert.rule == "straggler"]


def test_a_step_that_one_rank_does_not_have_is_passed_over():
    course = Course(["straggler"], ranks=4)
    said = []
    for step in range(120):
        gone = {2} if step % 9 == 0 else set()
        found = [{"forward_seconds": 0.2 if rank == 1 else 0.1, "step_seconds": 0.4} for rank in range(4)]
        said += course.step_of_ranks([[]] * 4, found, gone=gone)
    assert [alert.rank for alert in said] == [1]
