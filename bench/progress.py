"""Time and memory of `vario progress`: the summary of a trainer_state.json with 200,000 rows, whole process.

python bench/progress.py [--rows N] [--repeats N]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path


def write_state(path: Path, num_rows: int) -> None:
    """A state as the HF Trainer writes it: a row every 10 steps, an evaluation every 1,000 rows.

    Row by row, since this process's memory counts for its forked children.
    """
    noise = random.Random(0)
    with open(path, "w", encoding="utf8") as file:
        file.write(f'{{\n  "epoch": {num_rows / 5000},\n  "global_step": {num_rows * 10},\n  "log_history": [\n')
        for index in range(1, num_rows + 1):
            row = {"epoch": index / 5000, "step": index * 10}
            loss = 2 + 8 / math.sqrt(index)
            if index % 1000 == 0:
                row |= {"eval_loss": loss, "eval_runtime": 12.5, "eval_samples_per_second": 80.1}
            else:
                row |= {"loss": loss + noise.gauss(0, 0.1), "grad_norm": noise.lognormvariate(0, 0.3)}
                row |= {"learning_rate": 5e-5 * (1 - index / num_rows / 2)}
            text = textwrap.indent(json.dumps(row, indent=2, sort_keys=True), "    ")
            file.write(text + (",\n" if index < num_rows else "\n"))
        file.write(f'  ],\n  "max_steps": {num_rows * 20},\n  "num_train_epochs": {num_rows // 2500}\n}}\n')


def measure(words: list[str]) -> tuple[float, float]:
    """Return seconds and peak MiB of one whole process."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "vario", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return seconds, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trainer_state.json"
        write_state(path, arguments.rows)
        print(f"{arguments.rows:,} rows, {path.stat().st_size / 2**20:.1f} MiB, {arguments.repeats} runs each")
        print(f"{'command':<42}{'median s':>10}{'slowest s':>11}{'peak MiB':>10}")
        for words in (["--help"], ["progress", "--help"], ["progress", str(path)], ["progress", str(path), "--json"],
                      ["progress", str(path), "-s", f"{folder}/plot.png"]):  # fmt: skip
            found = [measure(words) for _ in range(arguments.repeats)]
            seconds = sorted(run[0] for run in found)
            shown = " ".join(Path(word).name if word.startswith("/") else word for word in words)
            peak = max(run[1] for run in found)
            print(f"{shown:<42}{seconds[len(seconds) // 2]:>10.2f}{seconds[-1]:>11.2f}{peak:>10.0f}")


if __name__ == "__main__":
    main()
