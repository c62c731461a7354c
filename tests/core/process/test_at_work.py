"""A fork waits for threads of vario that work, so that no child inherits a lock that nobody will release."""

import os
import signal
import threading

import pytest

from vario.core.process import at_work as forks
from vario.core.process.at_work import at_work, let_forks_pass
from vario.core.records import Scalars, StepRecord
from vario.training.writer import Writer


def fork_and_ask(call):
    """The exit code of a forked process that calls this."""
    child = os.fork()
    if not child:
        signal.alarm(60)  # one that hangs is a failure, not a wait
        os._exit(int(call()))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def worker():
    """Runs a function on another thread, inside `at_work`, and returns when it has begun."""
    begun, threads = threading.Event(), []

    def start(work):
        def run():
            with at_work():
                begun.set()
                work()

        forks.prepare()
        threads.append(threading.Thread(target=run))
        threads[-1].start()
        assert begun.wait(60)

    yield start
    for thread in threads:
        thread.join(60)


def test_a_fork_waits_until_the_work_is_done(worker):
    done = []

    def work():
        while not forks._threads.num_forks_waiting:
            pass
        done.append(1)

    worker(work)
    assert fork_and_ask(lambda: len(done)) == 1


def test_long_work_lets_a_fork_pass_in_between(worker):
    may_end, passed = threading.Event(), []

    def work():
        while not may_end.is_set():
            let_forks_pass()
        passed.append(1)

    worker(work)
    assert fork_and_ask(lambda: len(passed)) == 0
    may_end.set()


def test_a_fork_does_not_wait_forever_and_its_child_can_work(worker, monkeypatch):
    monkeypatch.setattr(forks, "LIMIT_SECONDS", 0.05)
    may_end = threading.Event()
    worker(lambda: may_end.wait(60))

    def work_in_child():
        with at_work():
            return 7

    assert fork_and_ask(work_in_child) == 7
    may_end.set()


def test_work_outside_is_not_taken_for_work_inside():
    let_forks_pass()
    assert not forks._threads.working


def test_a_step_is_written_to_its_end_before_a_fork():
    begun, written = threading.Event(), []

    def write(records):
        begun.set()
        while not forks._threads.num_forks_waiting:
            pass
        written.extend(records)

    writer = Writer(write, pytest.fail)
    writer.put(lambda: StepRecord(0, [], Scalars(0, 0.0, {})))
    assert begun.wait(60)
    assert fork_and_ask(lambda: len(written)) == 1
    writer.close()
