from vario.core.schedule import Schedule


def watched(schedule, num_steps=12):
    return [step for step in range(num_steps) if schedule.watches(step)]


def test_every_step_unless_said_otherwise():
    assert watched(Schedule(), 4) == [0, 1, 2, 3]


def test_every_counts_from_start():
    assert watched(Schedule(every=3, start=2)) == [2, 5, 8, 11]


def test_count_limits_the_watched_steps_not_the_steps():
    assert watched(Schedule(every=3, start=2, count=2)) == [2, 5]


def test_a_count_of_zero_watches_nothing():
    assert watched(Schedule(count=0)) == []
