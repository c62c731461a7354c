"""Runs a training program twice, as it is and under `vario run`, and says in what the two differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import vario
from starting import Start

HERE = Path(__file__).parent


@dataclass
class Outcome:
    """What watching one program came to."""

    name: str
    summary: str
    """What the program is: the first line of its docstring."""
    runs: int = 0
    steps: int = 0
    expected_steps: int = 0
    loss: str = "none"
    """How the recorded loss compares with what the program printed."""
    notes: int = 0
    problems: list[str] = field(default_factory=list)


def programs(kind: str) -> list[Path]:
    """All programs of a folder, in order."""
    return sorted((HERE / "programs" / kind).glob("*.py"))


def watch_program(path: Path, folder: Path, start: Start, options: Sequence[str] = ()) -> Outcome:
    """Run a program plain and watched, each in a folder of its own, and compare."""
    outcome = Outcome(path.stem, " ".join(path.read_text().split('"""')[1].split()))
    plain, watched = folder / "plain", folder / "watched"
    codes = []
    for place, words in ((plain, [str(path)]), (watched, ["-m", "vario", "run", *options, str(path)])):
        place.mkdir(parents=True)
        codes.append(start(words, place))
    printed, told = (plain / "stdout.txt").read_text(), (watched / "stderr.txt").read_text()
    if codes[1] != codes[0]:
        outcome.problems.append(f"exit code {codes[1]}, not {codes[0]}: {_last_line(told)}")
    if (watched / "stdout.txt").read_text() != printed:
        outcome.problems.append(_first_difference(printed, (watched / "stdout.txt").read_text()))
    outcome.expected_steps, losses = _read(printed, plain)
    _look_at_runs(outcome, watched / "vario_runs", losses, told, has_loss="no backward" not in printed.splitlines())
    return outcome


def _read(printed: str, folder: Path) -> tuple[int, list[float] | None]:
    """How many steps the program says it took, and the loss of each, where a step has just one."""
    lines = [line.split() for line in printed.splitlines() if line]
    steps = [int(words[1]) for words in lines if words[0] == "steps"]
    assert len(steps) == 1, f"a program prints one line 'steps N':\n{(folder / 'stderr.txt').read_text()[-2000:]}"
    losses = [float.fromhex(words[1]) for words in lines if words[0] == "loss"]
    return steps[0], losses or None


def _look_at_runs(outcome: Outcome, folder: Path, losses: list[float] | None, told: str, has_loss: bool) -> None:
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
    if not has_loss:
        outcome.problems += [f"a loss was recorded: {names}" for names in map(_losses_of, runs) if names]
    elif outcome.expected_steps:
        _look_at_losses(outcome, runs, losses)


def _look_at_losses(outcome: Outcome, runs: Sequence[vario.Run], printed: list[float] | None) -> None:
    names = [_losses_of(run) for run in runs]
    if not all(names) or not names:
        outcome.problems.append("no loss was recorded")
        return
    outcome.loss = "recorded"
    if printed is None or len(runs) != 1:
        return
    series = runs[0].series(names[0][0], "scalar")
    found = dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))
    wrong = [step for step, loss in enumerate(printed) if found.get(step) != loss]
    outcome.loss = "equal"
    if wrong:
        outcome.loss = "different"
        step = wrong[0]
        outcome.problems.append(f"loss of step {step} is {found.get(step)}, not {printed[step]} ({len(wrong)} differ)")


def _losses_of(run: vario.Run) -> list[str]:
    """The losses of a run, the one its report shows first."""
    found = run.targets("scalar") if "scalar" in run.quantities() else []
    return [name for name in found if name == "loss"] + [name for name in found if name.startswith("loss_")]


def _first_difference(plain: str, watched: str) -> str:
    for number, (left, right) in enumerate(zip(plain.splitlines(), watched.splitlines(), strict=False), 1):
        if left != right:
            return f"line {number} of stdout is {right!r}, not {left!r}"
    return f"stdout has {len(watched.splitlines())} lines, not {len(plain.splitlines())}"


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")
