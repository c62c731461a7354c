"""A run of very many ranks, written by real writers: how long readers take, and how much memory.

    python bench/ranks.py                  1,024 ranks of 64 steps, 24 targets
    python bench/ranks.py --ranks 256 --steps 256
    python bench/ranks.py --follow 60      what `vario follow` costs while 60 steps are written, one every few seconds

One rank has a NaN, one has replicas that differ, one is slow. Each question is asked in a process of its own, on no
more than two cores.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np

from vario.config import Config
from vario.core.records import (
    COLUMNS,
    COUNT,
    MAX,
    MIN,
    NANS,
    SUM,
    SUM_SQUARES,
    ZEROS,
    Frame,
    Scalars,
    StepRecord,
    Table,
)
from vario.core.run_header import RunHeader
from vario.sinks.alerts import Alerts
from vario.sinks.store import Store

STEP_SECONDS = 1.0
QUESTIONS = {
    "vario ls": ["ls", "{folder}"],
    "vario report": ["report", "{run}"],
    "vario report, once more": ["report", "{run}"],
    "vario check": ["check", "{run}"],
    "vario diagnose": ["diagnose", "{run}"],
    "vario show, one series of all ranks": ["show", "layers.3.weight", "{run}", "--quantity", "gradient"],
}


class Job:
    """Ranks that train the same model, with three faults."""

    def __init__(self, folder: Path, ranks: int, steps: int, targets: int) -> None:
        self.path = folder / "job"
        self.ranks, self.steps = ranks, steps
        self.names = tuple(f"layers.{number}.weight" for number in range(targets))
        self.bad, self.apart, self.slow = ranks // 2, ranks // 3, ranks - 5
        self.started = time.time() - steps * STEP_SECONDS
        self.is_live = False
        """Whether steps end when they are written."""

    def open(self, rank: int) -> list[Store | Alerts]:
        """Return what writes one rank, open: the store, and the rules."""
        parameters = [{"name": name, "shape": [256, 256], "dtype": "float32", "replicas": 0} for name in self.names]
        header = RunHeader(
            path=self.path,
            rank=rank,
            world_size=self.ranks,
            config={key: value for key, value in Config().to_json().items() if key != "params"},
            versions={"vario": "bench"},
            command="python train.py",
            structure={"modules": [], "parameters": parameters, "groups": [list(range(self.ranks))]},
            first_step=None,
            resume=False,
            started=self.started,
        )
        sinks: list[Store | Alerts] = [Store(), Alerts()]
        for sink in sinks:
            sink.open(header)
        return sinks

    def record(self, rank: int, step: int) -> StepRecord:
        """Return what one rank tells of one step."""
        draw = np.random.default_rng(zlib.crc32(f"{rank} {step}".encode()))
        frames = [Frame("gradient", step, 0, self.names, self._orders(), self._rows(draw, 1 + 0.05 * draw.normal()))]
        if step % 10 == 0:
            rows = np.zeros((len(self.names), len(COLUMNS)))
            rows[:, COUNT] = 1
            rows[:, SUM] = np.random.default_rng(step).integers(1 << 40, size=len(rows))
            if rank == self.apart and step >= self.steps // 2:
                rows[3, SUM] += 1
            rows[:, MIN] = rows[:, MAX] = rows[:, SUM]
            names = tuple(f"{name}:weight" for name in self.names)
            frames.append(Frame("checksum", step, 0, names, self._orders(), rows))
        if rank == self.bad and step >= self.steps * 3 // 4:
            frames[0].summaries[5, NANS] = 7
        extra = 0.3 if rank == self.slow and step >= self.steps // 4 else 0.0
        numbers = {
            "loss": 2.0 / (1 + step / 20) + 0.05 * float(draw.normal()),
            "step_seconds": STEP_SECONDS,
            "forward_seconds": 0.2 + 0.002 * float(draw.normal()),
            "backward_seconds": 0.4 + extra + 0.004 * float(draw.normal()),
            "update_seconds": 0.05,
            "wait_seconds": 0.01,
        }
        ended = time.time() if self.is_live else self.started + step * STEP_SECONDS
        return StepRecord(step, tuple(frames), Scalars(step, ended, numbers))

    def write(self) -> None:
        """Write the whole run, rank after rank."""
        for rank in range(self.ranks):
            sinks = self.open(rank)
            for step in range(self.steps):
                record = self.record(rank, step)
                for sink in sinks:
                    sink.write(record)
            for sink in sinks:
                sink.close("finished", None)

    def _orders(self) -> np.ndarray:
        return np.arange(len(self.names), dtype=np.int32)

    def _rows(self, draw: np.random.Generator, scale: float) -> Table:
        rows = np.zeros((len(self.names), len(COLUMNS)))
        rows[:, COUNT] = 65536
        rows[:, SUM] = draw.normal(size=len(rows)) * 10
        rows[:, SUM_SQUARES] = 65536 * scale**2 * np.exp(0.1 * draw.normal(size=len(rows)))
        rows[:, MIN], rows[:, MAX] = -4 * scale, 4 * scale
        rows[:, ZEROS] = 3
        return rows


def write_slowly(job: Job, steps: int, seconds: float) -> None:
    """Write all ranks step by step, as ranks that train side by side do."""
    job.is_live, job.started = True, time.time()
    stores = [job.open(rank)[0] for rank in range(job.ranks)]
    for step in range(steps):
        began = time.perf_counter()
        for rank, store in enumerate(stores):
            store.write(job.record(rank, step))
        time.sleep(max(0.0, seconds - (time.perf_counter() - began)))
    for store in stores:
        store.close("finished", None)


def follow(job: Job, steps: int, seconds: float) -> None:
    """Follow a run while it is written, and print what that took."""
    writer = multiprocessing.get_context("fork").Process(target=write_slowly, args=(job, steps, seconds))
    writer.start()
    while not (job.path / f"rank{job.ranks - 1}").exists():
        time.sleep(0.5)
    took, cpu, peak, said = ask(["follow", str(job.path), "--interval", "1"], limit=3600)
    writer.join()
    print(f"vario follow: {cpu / steps:.2f} s of CPU for each of {steps} steps, {took:.0f} s, {peak:.0f} MB")
    print("\n".join("    " + line for line in said.splitlines()[:14]))


def ask(words: list[str], limit: int = 600) -> tuple[float, float, float, str]:
    """Run one command: seconds, seconds of CPU, highest memory in MB, and the end of what it printed."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [
        sys.executable,
        "-c",
        "import resource,sys; from vario.cli import main; code = main(sys.argv[1:]);"
        "print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, file=sys.stderr); sys.exit(code)",
    ]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=limit, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak = float(done.stderr.rpartition("peak")[2] or "nan")
    return time.perf_counter() - began, cpu, peak, done.stdout


def main() -> None:
    """Write the run, ask, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--targets", type=int, default=24)
    parser.add_argument("--follow", type=int, metavar="STEPS", help="follow a run while this many steps are written")
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="between two steps of it, as far as writing is that quick"
    )
    parser.add_argument("--folder", type=Path, help="keep the run here, and use it if it is there")
    chosen = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="vario-ranks-"))
    job = Job(folder, chosen.ranks, chosen.steps, chosen.targets)
    try:
        if chosen.follow:
            follow(job, chosen.follow, chosen.seconds)
            return
        if not job.path.exists():
            began = time.perf_counter()
            job.write()
            print(f"written in {time.perf_counter() - began:.0f} s")
        size = sum(file.stat().st_size for file in job.path.rglob("*") if file.is_file())
        files = sum(1 for file in job.path.rglob("*") if file.is_file())
        print(f"{job.ranks} ranks, {job.steps} steps, {len(job.names)} targets: {files:,} files, {size / 1e6:.0f} MB")
        print(f"bad rank {job.bad}, replicas differ on {job.apart}, slow rank {job.slow}")
        for title, words in QUESTIONS.items():
            seconds, cpu, peak, said = ask([word.format(folder=folder, run=job.path) for word in words])
            print(f"{title:40s} {seconds:6.2f} s  {cpu:6.2f} s of CPU  {peak:5.0f} MB")
            print("\n".join("    " + line for line in said.splitlines()[:14]))
    finally:
        if chosen.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
