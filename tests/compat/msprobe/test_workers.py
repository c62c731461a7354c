import builtins
import itertools

import pytest

from vario.compat.msprobe.workers import run_tasks

# What a worker runs has to be importable in its process: here, functions of the standard library.


@pytest.mark.parametrize("num_processes", [1, 2, 3, 9])
def test_answers_come_in_the_order_of_the_tasks(num_processes):
    assert list(run_tasks(range, [3, 0, 2, 4], num_processes)) == [0, 1, 2, 0, 1, 0, 1, 2, 3]


def test_no_task_is_no_answer():
    assert list(run_tasks(range, [], 4)) == []


def test_what_goes_wrong_in_a_worker_is_raised_here():
    with pytest.raises(TypeError, match="'int' object is not iterable"):
        list(run_tasks(iter, [[1], 2], 2))


def test_a_worker_that_prints_does_not_disturb_its_answers(capfd):
    tasks = ["print(1) or [1]", "print(2) or [2]"]
    assert list(run_tasks(builtins.eval, tasks, 2)) == [1, 2]
    # Two processes may print into each other's lines.
    assert sorted(capfd.readouterr().err.replace("\n", "")) == ["1", "2"]


def test_a_worker_that_dies_is_named():
    with pytest.raises(RuntimeError, match="ended early, with exit code 7"):
        list(run_tasks(builtins.eval, ["[1]", "__import__('os')._exit(7)"], 2))


def test_answers_that_nobody_takes_are_not_waited_for():
    answers = run_tasks(itertools.repeat, ["x" * 1000] * 2, 2)
    assert next(answers) == "x" * 1000
    answers.close()
