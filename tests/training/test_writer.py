"""The thread between training and the sinks."""

import threading

import pytest

from vario.training import writer
from vario.training.writer import Writer


def test_steps_are_delivered_in_order_on_a_thread_of_their_own():
    seen = []
    delivering = Writer(lambda records: seen.extend((one, threading.current_thread().name) for one in records), print)
    for step in range(50):
        assert delivering.put(lambda step=step: step)
    assert not delivering.runs_here()
    delivering.close()
    assert seen == [(step, "vario-writer") for step in range(50)]


def test_training_waits_a_while_and_then_goes_on_without_the_step(monkeypatch):
    monkeypatch.setattr(writer, "MAX_WAIT_SECONDS", 0.01)
    may_go_on, started, seen = threading.Event(), threading.Event(), []

    def write(records):
        started.set()
        may_go_on.wait()
        seen.extend(records)

    delivering = Writer(write, print)
    assert delivering.put(lambda: -1)
    started.wait()
    accepted = [delivering.put(lambda step=step: step) for step in range(20)]
    # The one that is being delivered waits as well.
    assert accepted == [True] * 15 + [False] * 5
    assert delivering.num_refused == 5
    may_go_on.set()
    delivering.close()
    assert seen == [-1, *range(15)]


@pytest.mark.parametrize(
    ("at_once", "expected"),
    [(3600.0, [[0], [1, 2, 3, 5, 6, 7]]), (-1.0, [[0], [1], [2], [3], [5], [6], [7]])],
    ids=["all are there", "each had to be waited for"],
)
def test_steps_that_are_there_go_together_and_one_that_fails_costs_no_other(monkeypatch, at_once, expected):
    monkeypatch.setattr(writer, "AT_ONCE_SECONDS", at_once)
    started, may_go_on, written, failures = threading.Event(), threading.Event(), [], []
    delivering = Writer(lambda records: written.append(list(records)), failures.append)

    def build(step):
        if step == 0:
            started.set()
            may_go_on.wait()
        if step == 4:
            raise ValueError(step)
        return step

    assert delivering.put(lambda: build(0))
    started.wait()
    for step in range(1, 8):
        assert delivering.put(lambda step=step: build(step))
    may_go_on.set()
    delivering.close()
    assert written == expected
    assert [str(failure) for failure in failures] == ["4"]
