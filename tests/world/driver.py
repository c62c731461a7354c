"""Runs a training program twice, as it is and under `vario run`, and says in what the two differ."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import vario

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_SECONDS = 240


@dataclass
class Outcome:
    """What watching one program came to."""

    name: str
    summary: str
    """What the program is: the first line of its docstring."""
    runs: int = 0
    steps: int = 0
    expected_steps: int = 0
    loss: str = ""
    """How the recorded loss compares with what the program printed."""
    notes: int = 0
    problems: list[str] = field(default_factory=list)
    plain_seconds: float = 0.0
    watched_seconds: float = 0.0


def programs(kind: str) -> list[Path]:
    """All programs of a folder, in order."""
    return sorted((PROGRAMS / kind).glob("*.py"))


def watch_program(path: Path, folder: Path, options: Sequence[str] = ()) -> Outcome:
    """Run a program plain and watched, each in a folder of its own, and compare."""
    outcome = Outcome(path.stem, path.read_text().split('"""')[1].splitlines()[0])
    plain, outcome.plain_seconds = _start([str(path)], folder / "plain")
    watched, outcome.watched_seconds = _start(["-m", "vario", "run", *options, str(path)], folder / "watched")
    if watched.returncode != plain.returncode:
        outcome.problems.append(f"exit code {watched.returncode}, not {plain.returncode}: {_last_line(watched.stderr)}")
    if watched.stdout != plain.stdout:
        outcome.problems.append(_first_difference(plain.stdout, watched.stdout))
    outcome.expected_steps, losses = _printed(plain.stdout)
    _look_at_runs(outcome, folder / "watched" / "vario_runs", losses, watched.stderr)
    return outcome


def _start(words: Sequence[str], folder: Path) -> tuple[subprocess.CompletedProcess[str], float]:
    folder.mkdir(parents=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    began = perf_counter()
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    (folder / "stdout.txt").write_text(done.stdout)
    (folder / "stderr.txt").write_text(done.stderr)
    return done, perf_counter() - began


def _printed(text: str) -> tuple[int, list[float] | None]:
    """How many steps the program says it took, and the loss of each, where a step has just one."""
    lines = [line.split() for line in text.splitlines() if line]
    steps = [int(words[1]) for words in lines if words[0] == "steps"]
    assert len(steps) == 1, f"a program prints one line 'steps N', not {len(steps)}:\n{text[-500:]}"
    losses = [float.fromhex(words[1]) for words in lines if words[0] == "loss"]
    return steps[0], losses or None


def _look_at_runs(outcome: Outcome, folder: Path, losses: list[float] | None, told: str) -> None:
    runs = vario.list_runs(folder) if folder.is_dir() else []
    outcome.runs = len(runs)
    outcome.steps = sum(len(run.steps()) for run in runs)
    if outcome.steps != outcome.expected_steps:
        outcome.problems.append(f"{outcome.steps} steps in {len(runs)} runs, not {outcome.expected_steps}")
    if outcome.expected_steps == 0 and "vario:" not in told:
        outcome.problems.append("nothing was recorded, and nothing said")
    for run in runs:
        outcome.problems += [f"switched off: {part.part}: {part.error}" for part in run.parts_off]
        for alert in run.alerts:
            if alert.severity == "note":
                outcome.notes += 1
            else:
                outcome.problems.append(f"{alert.severity} at step {alert.step}: {alert.rule}: {alert.text}")
    if outcome.expected_steps:
        _look_at_losses(outcome, runs, losses)


def _look_at_losses(outcome: Outcome, runs: Sequence[vario.Run], printed: list[float] | None) -> None:
    recorded = [run for run in runs if "scalar" in run.quantities() and "loss" in run.targets("scalar")]
    if len(recorded) < len(runs) or not recorded:
        outcome.loss = "missing"
        outcome.problems.append("no loss was recorded")
        return
    outcome.loss = "recorded"
    if printed is None or len(recorded) != 1:
        return
    series = recorded[0].series("loss", "scalar")
    found = dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))
    wrong = [step for step, loss in enumerate(printed) if found.get(step) != loss]
    outcome.loss = "equal"
    if wrong:
        outcome.loss = "different"
        step = wrong[0]
        outcome.problems.append(f"loss of step {step} is {found.get(step)}, not {printed[step]} ({len(wrong)} differ)")


def _first_difference(plain: str, watched: str) -> str:
    for number, (left, right) in enumerate(zip(plain.splitlines(), watched.splitlines(), strict=False), 1):
        if left != right:
            return f"line {number} of stdout is {right!r}, not {left!r}"
    return f"stdout has {len(watched.splitlines())} lines, not {len(plain.splitlines())}"


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")
