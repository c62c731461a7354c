"""The thread between training and the sinks."""

import threading

from vario import writer
from vario.writer import Writer


def test_steps_are_delivered_in_order_on_a_thread_of_their_own():
    seen = []
    delivering = Writer(lambda builds: seen.extend((build(), threading.current_thread().name) for build in builds))
    for step in range(50):
        assert delivering.put(lambda step=step: step)
    assert not delivering.runs_here()
    delivering.close()
    assert seen == [(step, "vario-writer") for step in range(50)]


def test_training_waits_a_while_and_then_goes_on_without_the_step(monkeypatch):
    monkeypatch.setattr(writer, "MAX_WAIT_SECONDS", 0.01)
    may_go_on, started, seen = threading.Event(), threading.Event(), []

    def deliver(builds):
        started.set()
        may_go_on.wait()
        seen.extend(build() for build in builds)

    delivering = Writer(deliver)
    assert delivering.put(lambda: -1)
    started.wait()
    accepted = [delivering.put(lambda step=step: step) for step in range(20)]
    # The one that is being delivered waits as well.
    assert accepted == [True] * 15 + [False] * 5
    assert delivering.num_refused == 5
    may_go_on.set()
    delivering.close()
    assert seen == [-1, *range(15)]
