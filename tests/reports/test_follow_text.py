"""What `vario follow` says of ranks in trouble."""

from vario.reports.follow_text import trouble_lines
from vario.runs.live.run_watch import Trouble


def stalled(rank, step, seconds=70.0):
    return Trouble(rank, "node", "stalled", step, seconds, 1.0)


def test_a_few_ranks_are_told_one_by_one():
    lines = list(trouble_lines([stalled(0, 4), stalled(3, 5)]))
    assert lines == [
        "page: rank 0 on node has not completed a step for 1 min 10 s, usually 1 s per step; its last step is 4",
        "page: rank 3 on node has not completed a step for 1 min 10 s, usually 1 s per step; its last step is 5",
    ]


def test_a_job_that_hangs_is_one_line_that_names_who_is_behind():
    troubles = [stalled(rank, 41 if rank in (7, 8) else 42, 60.0 + rank / 100) for rank in range(1024)]
    assert list(trouble_lines(troubles)) == [
        "page: 1024 ranks (0-1023) have not completed a step for 1 min 10 s, usually 1 s per step; "
        "ranks 7-8 furthest behind, at step 41; others at 42"
    ]


def test_ranks_that_stand_at_the_same_step_have_nobody_behind():
    (line,) = trouble_lines([stalled(rank, 9) for rank in range(8)])
    assert line.endswith("; their last step is 9")
    (line,) = trouble_lines([stalled(rank, None) for rank in range(8)])
    assert line.endswith("; no step yet")


def test_what_has_happened_is_kept_apart():
    died = Trouble(5, "node", "died", 3, error="killed by signal 9")
    victims = [Trouble(rank, "node", "crashed", 3, victim_of=5) for rank in range(5)]
    well = [Trouble(rank, "node", "well", 4) for rank in range(6, 12)]
    assert list(trouble_lines([died, *victims, *well])) == [
        "page: rank 5 on node died: killed by signal 9; its last step is 3",
        "note: 5 ranks (0-4) crashed, taken down by rank 5; their last step is 3",
        "note: 6 ranks (6-11) continue; their last step is 4",
    ]
