"""Run each fault beside its healthy twin, without any monitor: equal to the bit before the fault, different after it.

python check.py [PROGRAM ...]
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


def run(program: str, *options: str) -> tuple[list[str], int, float]:
    """Return what a program printed, its fault's step, and its seconds."""
    started = time.monotonic()
    command = [sys.executable, str(HERE / "programs" / f"{program}.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "VARIO": "off"})
    steps = [line for line in done.stderr.splitlines() if line.startswith("FAULT_STEP")]
    if done.returncode:
        print(f"{program} {options} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout.splitlines(), int(steps[0].split()[1]) if steps else -1, time.monotonic() - started


def losses(lines: list[str]) -> dict[int, str]:
    return {int(line.split()[1]): line for line in lines if line.startswith("step ")}


def mean(lines: dict[int, str], first: int, last: int) -> float:
    values = [float(line.split()[3]) for step, line in lines.items() if first <= step < last]
    return sum(values) / max(len(values), 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--seed", default="7")
    options = parser.parse_args()
    truth = json.loads((HERE / "truth.json").read_text())
    for program in options.programs or truth["programs"]:
        twin, _, seconds = run(program, "--seed", options.seed)
        healthy = losses(twin)
        end = len(healthy)
        levels = mean(healthy, 0, 10), mean(healthy, end - 20, end)
        print(f"{program}: {end} steps, {seconds:.1f} s, loss {levels[0]:.4g} to {levels[1]:.4g}")
        for fault in [row["fault"] for row in truth["faults"] if row["program"] == program]:
            printed, begin, seconds = run(program, "--fault", fault, "--seed", options.seed)
            found = losses(printed)
            differ = [step for step in healthy if healthy[step] != found.get(step)]
            first = differ[0] if differ else None
            late = first >= begin if first is not None else printed[-1:] != twin[-1:]
            fine = late and len(found) == end
            near = [mean(found, at, at + 30) / mean(healthy, at, at + 30) for at in (begin, max(begin, end - 30))]
            print(
                f"  {'ok  ' if fine else 'BAD '} {fault}: begins {begin}, first difference {first}, loss of 30 steps "
                f"over the twin's {near[0]:.3f}, at the end {near[1]:.3f}; {seconds:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
