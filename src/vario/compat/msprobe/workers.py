"""Processes several files in parallel worker processes.

They are spawned, not forked (the caller may have threads), and without `multiprocessing`, which would run the caller's
script again in each of them unless it has a main guard.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

Task = TypeVar("Task")
Item = TypeVar("Item")

_CHILD = (
    # Ctrl-C goes to all processes of a terminal: the caller handles it and ends the others.
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from {module} import serve; serve()"
)


def run_tasks(
    function: Callable[[Task], Iterator[Item]], tasks: Sequence[Task], num_processes: int
) -> Generator[Item, None, None]:
    """Yield what `function` yields for each task, in task order, with several worker processes.

    A process that is ahead waits: at most a pipe's buffer is kept in memory. Close the generator to end them early.
    """
    num_processes = min(num_processes, len(tasks))
    if num_processes <= 1:
        for task in tasks:
            yield from function(task)
        return
    workers: list[subprocess.Popen[bytes]] = []
    try:
        workers.extend(_start(function, tasks[nth::num_processes]) for nth in range(num_processes))
        for nth in range(len(tasks)):
            yield from _items_of_one_task(workers[nth % num_processes])
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def _start(function: Callable[[Any], Iterator[Any]], tasks: Sequence[Any]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _CHILD.format(module=__name__)]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert worker.stdin is not None
    pickle.dump(sys.path, worker.stdin)
    pickle.dump((function, list(tasks)), worker.stdin)
    worker.stdin.close()
    worker.stdin = None
    return worker


def _items_of_one_task(worker: subprocess.Popen[bytes]) -> Iterator[Any]:
    assert worker.stdout is not None
    while True:
        try:
            kind, item = pickle.load(worker.stdout)
        except EOFError:
            raise RuntimeError(f"a worker process ended early, with exit code {worker.wait()}") from None
        if kind == "failed":
            raise item
        if kind == "done":
            return
        yield item


def serve() -> None:
    """Run a worker: tasks arrive on stdin, results go to stdout."""
    function, tasks = pickle.load(sys.stdin.buffer)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints must not mix with the results
    try:
        for task in tasks:
            for item in function(task):
                pickle.dump(("item", item), answers, pickle.HIGHEST_PROTOCOL)
                answers.flush()
            pickle.dump(("done", None), answers)
            answers.flush()
    except BrokenPipeError:
        os._exit(1)  # the caller is gone
    except Exception as error:  # noqa: BLE001 - the caller raises it
        pickle.dump(("failed", error), answers)
        answers.flush()
