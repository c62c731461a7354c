"""Run each fault beside its healthy twin, without any monitor: equal to the bit before the fault, different after it.

python check.py [--set second] [PROGRAM ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SETS = {"first": HERE, "second": HERE / "second", "third": HERE / "third", "own": HERE / "own"}


def run(folder: Path, program: str, *options: str) -> tuple[list[str], int, float]:
    """Return what a program printed, its fault's step, and its seconds."""
    started = time.monotonic()
    command = [sys.executable, str(folder / "programs" / f"{program}.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "VARIO": "off"})
    steps = [line for line in done.stderr.splitlines() if line.startswith("FAULT_STEP")]
    if done.returncode:
        print(f"{program} {options} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout.splitlines(), int(steps[0].split()[1]) if steps else -1, time.monotonic() - started


def losses(lines: list[str]) -> dict[int, str]:
    return {int(line.split()[1]): line for line in lines if line.startswith("step ")}


def number(line: str, name: str) -> float:
    words = line.split()
    return float(words[words.index(name) + 1])


def mean(lines: dict[int, str], first: int, last: int, name: str = "loss") -> float:
    values = [number(line, name) for step, line in lines.items() if first <= step < last]
    return sum(values) / max(len(values), 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--set", choices=SETS, default="first")
    parser.add_argument("--seed", default="7")
    options = parser.parse_args()
    folder = SETS[options.set]
    truth = json.loads((folder / "truth.json").read_text())
    for program in options.programs or truth["programs"]:
        twin, _, seconds = run(folder, program, "--seed", options.seed)
        healthy = losses(twin)
        end = len(healthy)
        levels = mean(healthy, 0, 10), mean(healthy, end - 20, end)
        print(f"{program}: {end} steps, {seconds:.1f} s, loss {levels[0]:.4g} to {levels[1]:.4g}")
        for fault in [row["fault"] for row in truth["faults"] if row["program"] == program]:
            printed, begin, seconds = run(folder, program, "--fault", fault, "--seed", options.seed)
            found = losses(printed)
            differ = [step for step in healthy if healthy[step] != found.get(step)]
            first = differ[0] if differ else None
            late = first >= begin if first is not None else printed[-1:] != twin[-1:]
            fine = late and len(found) == end
            print(f"  {'ok  ' if fine else 'BAD '} {fault}: begins {begin}, first difference {first}", end="")
            for name in [name for name in ("loss", "reward") if f" {name} " in healthy[0]]:
                at = (begin, max(begin, end - 30))
                near = [mean(found, step, step + 30, name) / mean(healthy, step, step + 30, name) for step in at]
                print(f", {name} of 30 steps over the twin's {near[0]:.3f}, at the end {near[1]:.3f}", end="")
            print(f"; {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
