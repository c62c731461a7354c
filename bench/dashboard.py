"""How fast is the dashboard for a very long run? Heat map and series, by reading functions and in a browser; long
lists.

    python bench/dashboard.py                   # 2,000 targets x 10,000 steps: under a minute to write
    python bench/dashboard.py --full            # 20,000 x 100,000: about 35 GB and half an hour, once
    python bench/dashboard.py --retention tiers --reading   # old rows thinned, as in a training by default
    python bench/dashboard.py --cold            # with the files of the run out of the page cache before each answer
    python bench/dashboard.py --page --runs     # some of it: --reading, --page, --runs, --tensorboard

--reading: every query runs in its own process that has only imported vario, so nothing is cached. --page: the same run
through a fresh `vario serve` in a real Chromium. --runs: the list of a thousand runs. --tensorboard: the same numbers
in TensorBoard and in vario, 12,000 tags x 1,000 steps with --full. Runs are written by the store's own code
(`long_run.py`) and kept for the next time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dashboard_page import NUM_RUNS, time_list, time_page
from dashboard_server import print_lines
from dashboard_tensorboard import NAMES, time_beside
from long_run import Size, long_run, run_path
from vario.runs.run import Run, open_run
from vario.runs.views.curves import read_curve
from vario.runs.views.heat import Heat, read_heat


@dataclass(frozen=True)
class Answer:
    """One row of the table."""

    question: str
    milliseconds: float
    again_milliseconds: float
    """The same question, asked once more."""
    memory_bytes: int
    """The most the process had."""
    note: str

    def line(self) -> str:
        """As a row."""
        times = f"{self.milliseconds:.0f} | {self.again_milliseconds:.0f}"
        return f"| {self.question} | {times} | {self.memory_bytes / 2**20:.0f} | {self.note} |"


def heat_note(heat: Heat, size: Size) -> str:
    """What came, and whether every planted NaN is in it."""
    shown = sum(
        bool(heat.bad[row, (heat.first <= step) & (step <= heat.last)].any())
        for step, target in size.planted.items()
        if heat.first[0] <= step <= heat.last[-1]
        for row in [np.searchsorted(np.cumsum(heat.groups), target, "right")]
    )
    planted = sum(heat.first[0] <= step <= heat.last[-1] for step in size.planted)
    rows, columns = heat.values.shape
    kind = "from rollups" if heat.is_rollup else "every step"
    return f"{rows} x {columns}, {kind}; {shown} of {planted} planted NaN shown"


def questions(size: Size) -> dict[str, Callable[[Run], Any]]:
    """What is asked of a run; the answer is worded by `noted`."""
    middle, name = size.num_steps // 2, size.names[size.num_targets // 3]
    few = max(1, 400_000 // size.num_targets)
    return {
        "first heat map": lambda run: read_heat(run, "gradient", "norm"),
        "heat map of a signed statistic": lambda run: read_heat(run, "gradient", "mean"),
        "heat map of a tenth": lambda run: read_heat(run, "gradient", first=middle, last=middle + size.num_steps // 10),
        f"heat map of {few} steps": lambda run: read_heat(run, "gradient", first=middle, last=middle + few - 1),
        "one series": lambda run: read_curve(run, name, "gradient", "norm"),
        "one series, a tenth": lambda run: read_curve(
            run, name, "gradient", "norm", first=middle, last=middle + size.num_steps // 10
        ),
        "the loss": lambda run: read_curve(run, "loss", "scalar"),
        "names of all targets": lambda run: run.targets("gradient"),
        "recorded steps": lambda run: run.steps("gradient"),
        "one frame": lambda run: run.frame(middle, "gradient"),
    }


def noted(answer: Any, size: Size) -> str:
    """What came, in words."""
    if isinstance(answer, Heat):
        return heat_note(answer, size)
    if hasattr(answer, "is_whole"):
        return f"{len(answer)} points, {'every step' if answer.is_whole else 'lowest and highest of each bucket'}"
    return f"{len(answer):,}"


def answer(path: Path, size: Size, question: str) -> Answer:
    """Ask one question in this process, twice."""
    ask = questions(size)[question]
    start = time.perf_counter()
    run = open_run(path)
    found = ask(run)
    middle = time.perf_counter()
    ask(run)
    end = time.perf_counter()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Answer(question, (middle - start) * 1e3, (end - middle) * 1e3, memory, noted(found, size))


def forget(path: Path) -> None:
    """Put the files of a run out of the page cache."""
    for file in path.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def folder_bytes(folder: Path) -> int:
    """Size of all files in a folder."""
    return sum(entry.stat().st_size for entry in folder.rglob("*") if entry.is_file())


def print_reading(path: Path, size: Size, cold: bool, as_json: bool) -> None:
    """Ask each question in a process of its own."""
    answers = []
    for question in questions(size):
        if cold:
            forget(path)
        command = [sys.executable, __file__, f"--targets={size.num_targets}", f"--steps={size.num_steps}"]
        command.append(f"--retention={'tiers' if path.name.endswith('-tiers') else 'all'}")
        output = subprocess.run([*command, f"--ask={question}"], check=True, capture_output=True, text=True).stdout
        answers.append(Answer(**json.loads(output)))
    if as_json:
        print(json.dumps([answer.__dict__ for answer in answers]))
        return
    rows, rollups = (folder_bytes(path / "rank0" / name) for name in ("gradient", "outlines"))
    num_files = sum(entry.is_file() for entry in path.rglob("*"))
    whole = f"all {folder_bytes(path) / 1e9:.2f} GB in {num_files:,} files"
    print(f"rows {rows / 2**30:.2f} GiB, rollups {rollups / 2**30:.2f} GiB; {whole}\n")
    print("| query | ms | again ms | memory MiB | |")
    print("| --- | ---: | ---: | ---: | --- |")
    for found in answers:
        print(found.line(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the dashboard for a very long run.")
    parser.add_argument("--targets", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--full", action="store_true", help="20,000 targets x 100,000 steps, 12,000 tags")
    parser.add_argument("--retention", choices=("all", "tiers"), default="all", help="keep all rows, or thin old ones")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="that write the run")
    parser.add_argument("--cold", action="store_true", help="with the files out of the page cache")
    parser.add_argument("--reading", action="store_true", help="only this: the reading functions")
    parser.add_argument("--page", action="store_true", help="only this: the page in a browser")
    parser.add_argument("--runs", action="store_true", help="only this: a list of 1,000 runs")
    parser.add_argument("--tensorboard", action="store_true", help="only this: TensorBoard beside it")
    parser.add_argument("--json", action="store_true", help="of the reading functions alone")
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    size = Size(20_000, 100_000) if arguments.full else Size(arguments.targets, arguments.steps)
    path = run_path(size, arguments.retention)
    if arguments.ask is not None:
        print(json.dumps(answer(path, size, arguments.ask).__dict__))
        return
    chosen = [name for name in ("reading", "page", "runs", "tensorboard") if getattr(arguments, name)]
    if arguments.json:
        chosen = ["reading"]
    is_asked = {name: not chosen or name in chosen for name in ("reading", "page", "runs", "tensorboard")}
    if is_asked["reading"] or is_asked["page"]:
        long_run(size, arguments.processes, arguments.retention)
    title = f"{size.num_targets:,} targets x {size.num_steps:,} steps, {os.cpu_count()} cores, files "
    title += "out of the page cache" if arguments.cold else "in the page cache"
    if is_asked["reading"]:
        if not arguments.json:
            print(title)
        print_reading(path, size, arguments.cold, arguments.json)
    if is_asked["page"]:
        prepare = (lambda: forget(path)) if arguments.cold else (lambda: None)
        print_lines(f"The page: {title}", time_page(path, size, prepare))
    if is_asked["runs"]:
        print_lines(f"The list of {NUM_RUNS:,} runs", time_list())
    if is_asked["tensorboard"]:
        beside = Size(2000, 1000) if arguments.full else Size(200, 1000)
        print_lines(
            f"TensorBoard beside it: {beside.num_targets * len(NAMES):,} tags x {beside.num_steps:,} steps",
            time_beside(beside, arguments.processes),
        )


if __name__ == "__main__":
    main()
