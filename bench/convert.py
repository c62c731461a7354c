"""Time and memory of converting msprobe's CSV files, compared with msprobe's own converters.

    make peers
    .venv/bin/python bench/convert.py                       # 1,000 steps x 2,000 parameters x 6 statistics
    .venv/bin/python bench/convert.py --steps 100 --only ours

All get the same files, as msprobe 26.2.0 writes them, and two processes; msprobe shares its work out by rank, so the
parameters are those of two ranks. Its database is that of 8.3.0, the last release with `csv2db`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PEERS = Path(__file__).parents[1] / ".peers"
STATISTICS = ("norm", "min", "max", "mean", "zeros", "nans")
TAG = "Dec03_21-34-40"
TENSORBOARD = (
    f"csv2tensorboard_by_step('{{source}}', '{TAG}', '{TAG}', process_num={{processes}}, output_dirpath='{{output}}')"
)
DATABASE = "csv2db(CSV2DBConfig('{source}', process_num={processes}, output_dirpath='{output}'))"
OURS = "from vario.compat.msprobe import csv2tensorboard_by_step, csv2db, CSV2DBConfig; "


@dataclass(frozen=True)
class Way:
    """One converter."""

    name: str
    code: str
    peers: tuple[str, ...] = ()

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": os.pathsep.join(str(PEERS / name) for name in self.peers)}


WAYS = {
    "tensorboard": (
        Way("vario to TensorBoard", OURS + TENSORBOARD),
        Way(
            "msprobe 26.2.0 to TensorBoard",
            "from msprobe.pytorch.monitor.csv2tb import csv2tensorboard_by_step; " + TENSORBOARD,
            ("26.2.0", "common"),
        ),
    ),
    "sqlite": (
        Way("vario to SQLite", OURS + DATABASE),
        Way(
            "msprobe 8.3.0 to SQLite",
            "from msprobe.core.monitor.csv2db import csv2db, CSV2DBConfig; " + DATABASE,
            ("8.3.0", "common", "older"),
        ),
    ),
}


def make_files(base: Path, num_steps: int, num_parameters: int, num_ranks: int, steps_per_file: int) -> int:
    """Write the CSV files of a run; the answer is their size."""
    random = np.random.default_rng(0)
    header = ",".join(("vpp_stage,name,step", *STATISTICS, "shape,dtype")) + "\n"
    names = [
        f"model.layers.{n // 8}.self_attention.projection_{n % 8}.weight" for n in range(num_parameters // num_ranks)
    ]
    for rank in range(num_ranks):
        folder = base / f"{TAG}-rank{rank}-0123abcd"
        folder.mkdir(parents=True)
        for step in range(num_steps):
            first = step // steps_per_file * steps_per_file
            values = random.normal(size=(len(names), len(STATISTICS) - 1)).round(6).tolist()
            with (folder / f"grad_reduced_{first}-{first + steps_per_file - 1}.csv").open("a") as file:
                file.write(header if step == first else "")
                file.writelines(
                    f'0,{name},{step},{",".join(map(str, row))},0,"[4096, 1024]",torch.bfloat16\n'
                    for name, row in zip(names, values, strict=True)
                )
    return sum(path.stat().st_size for path in base.rglob("*.csv"))


def descendants(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            found += descendants(int(child))
    return found


def memory_bytes(pid: int) -> int:
    """Memory of a process and all below it; pages that several share are counted once."""
    total = 0
    try:
        for each in descendants(pid):
            for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
                total += 1024 * int(line.split()[1]) if line.startswith("Pss:") else 0
    except OSError:
        pass  # one of them ended meanwhile
    return total


def timed(way: Way, source: Path, output: Path, processes: int, limit: float) -> tuple[float, int]:
    """Seconds and peak memory of one conversion; infinite seconds when it was stopped at the limit."""
    code = way.code.format(source=source, output=output, processes=processes)
    started = time.perf_counter()
    worker = subprocess.Popen(
        [sys.executable, "-c", code], env=way.environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    peak = 0
    is_over = threading.Timer(limit, worker.kill)
    is_over.start()
    while worker.poll() is None:
        peak = max(peak, memory_bytes(worker.pid))
        time.sleep(0.1)
    seconds = time.perf_counter() - started
    is_over.cancel()
    if worker.returncode and seconds < limit:
        raise SystemExit(f"{way.name} failed with exit code {worker.returncode}")
    return (seconds if seconds < limit else float("inf")), peak


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Time the conversions of msprobe's CSV files, compared with msprobe's own."
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--parameters", type=int, default=2000, help="of all ranks together")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps-per-file", type=int, default=1, help="msprobe's step_count_per_record")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", choices=("ours", "theirs"))
    parser.add_argument("--to", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which a conversion is stopped")
    parser.add_argument("--folder", type=Path, help="output folder (default: the system's temporary folder)")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        source = folder / "source"
        num_bytes = make_files(source, arguments.steps, arguments.parameters, arguments.ranks, arguments.steps_per_file)
        print(
            f"{arguments.steps:,} steps x {arguments.parameters:,} parameters on {arguments.ranks} ranks x "
            f"{len(STATISTICS)} statistics: {num_bytes / 1e6:.0f} MB of CSV, "
            f"{arguments.steps_per_file} steps per file, {arguments.processes} processes, {os.cpu_count()} cores\n"
        )
        print("| conversion | seconds | scalars per second | peak memory MB | time relative to ours |")
        print("| --- | ---: | ---: | ---: | ---: |")
        for target in arguments.to:
            ours = float("nan")
            for way in WAYS[target]:
                if arguments.only in (None, "theirs" if way.peers else "ours"):
                    output = folder / "output"
                    seconds, peak = timed(way, source, output, arguments.processes, arguments.limit)
                    shutil.rmtree(output, ignore_errors=True)
                    ours = ours if way.peers else seconds
                    rate = arguments.steps * arguments.parameters * len(STATISTICS) / seconds
                    print(
                        f"| {way.name} | {seconds:.1f} | {rate:,.0f} | {peak / 1e6:.0f} | {seconds / ours:.1f} |",
                        flush=True,
                    )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
