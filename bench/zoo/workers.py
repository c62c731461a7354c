"""Recorder processes that stay: groups of ranks, one job at a time, and single ones, several side by side."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from zoo.record import RUNS, Job, clear, finish, is_recorded

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Failure:
    """A run that could not be recorded."""

    job: Job
    error: str


class Crew:
    """The processes of one group of ranks; one alone is a group of one."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._processes: list[subprocess.Popen[str]] = []

    def record(self, job: Job, runs: Path) -> str | None:
        """Record a job; returns what went wrong."""
        if not self._processes:
            self._start()
        clear(job, runs)
        line = json.dumps({**job.to_json(), "runs": str(runs)}) + "\n"
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()
        answers = [self._answer(process) for process in self._processes]
        if errors := [answer["error"] for answer in answers if "error" in answer]:
            # Other ranks may wait for the one that failed: begin with new processes.
            self.close()
            return str(max(errors, key=len))
        finish(job, runs)
        return None

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the recorder ended"}
        if "error" in answer and self.ranks > 1:
            # The others would wait for it in their next collective.
            for other in self._processes:
                other.kill()
        return answer

    def _start(self) -> None:
        home = str(Path(__file__).parents[1])
        paths = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
        shared = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"):
            shared.pop(name, None)
        if self.ranks > 1:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = str(free.getsockname()[1])
            shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(self.ranks)}
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "zoo.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**shared, "RANK": str(rank)} if self.ranks > 1 else shared,
                text=True,
            )
            for rank in range(self.ranks)
        ]

    def close(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.wait()
            process.stdout.close()
        self._processes = []


def record_all(jobs: Sequence[Job], side_by_side: int = 2, runs: Path = RUNS, tell: Tell = print) -> list[Failure]:
    """Record what is not there yet: first single processes side by side, then what needs a group of ranks."""
    wanted = list({job.name: job for job in jobs if not is_recorded(job, runs)}.values())
    failures: list[Failure] = []
    began, done = time.monotonic(), 0

    def one(crew: Crew, job: Job) -> None:
        nonlocal done
        started = time.monotonic()
        error = crew.record(job, runs)
        done += 1
        if error is not None:
            failures.append(Failure(job, error))
        spent = time.monotonic() - started
        result = "failed" if error is not None else f"{spent:.1f} s"
        tell(f"[{done}/{len(wanted)}, {time.monotonic() - began:.0f} s] {job.name}: {result}")

    single = [job for job in wanted if job.setup.ranks == 1]
    crews = [Crew(1) for _ in range(min(side_by_side, len(single)))]
    free: SimpleQueue[Crew] = SimpleQueue()
    for crew in crews:
        free.put(crew)

    def next_one(job: Job) -> None:
        crew = free.get()
        try:
            one(crew, job)
        finally:
            free.put(crew)

    try:
        with ThreadPoolExecutor(max(1, len(crews))) as pool:
            list(pool.map(next_one, single))
    finally:
        for crew in crews:
            crew.close()
    for ranks in sorted({job.setup.ranks for job in wanted if job.setup.ranks > 1}):
        crew = Crew(ranks)
        try:
            for job in wanted:
                if job.setup.ranks == ranks:
                    one(crew, job)
        finally:
            crew.close()
    return failures
