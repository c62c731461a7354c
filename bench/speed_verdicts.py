"""What vario and TraceML say of trainings that are slow in one way each, and what each of them costs.

    python -m venv /tmp/traceml && /tmp/traceml/bin/pip install torch==2.13.0 traceml-ai
    python bench/speed_verdicts.py --traceml /tmp/traceml/bin --out speed_verdicts.json

Each case is run by `vario run` and by `traceml run`. Overhead is the median step of a training that nothing slows,
beside the same without either tool in the same environment, in turns.
"""

import argparse
import itertools
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TRAIN = Path(__file__).with_name("speed_verdicts_train.py")
ONE = (
    "compute",
    "dataset",
    "collate",
    "forward",
    "backward",
    "loss",
    "optimizer",
    "between",
    "evaluation",
    "checkpoint",
)
TWO = ("slow link", "slow rank")
CLOCKS = ("step", "CPU time of the training thread", "CPU time of the process")
WARM = 20
"""Steps that do not count for the overhead."""


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--traceml", type=Path, required=True, help="the bin folder of an environment with TraceML")
    options.add_argument(
        "--cases", nargs="*", default=[*ONE, *TWO], help="only these and no overhead; none: the overhead alone"
    )
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--overhead-steps", type=int, default=300)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--out", type=Path, default=Path("speed_verdicts.json"))
    chosen = options.parse_args()
    found: dict[str, Any] = {"verdicts": {}, "overhead": {}}
    for case in chosen.cases:
        ranks = 2 if case in TWO else 1
        said = {"vario": by_vario(case, chosen.steps, ranks), "TraceML": by_traceml(chosen, case, chosen.steps, ranks)}
        found["verdicts"][case] = {name: verdict for name, (verdict, _) in said.items()}
        print(f"{case}: {found['verdicts'][case]}", flush=True)
    if len(chosen.cases) in (0, len(ONE) + len(TWO)):
        found["overhead"] = overhead(chosen)
    chosen.out.write_text(json.dumps(found, indent=1) + "\n")
    print_table(found)


def environment(**more: str) -> dict[str, str]:
    # Without these, what a tool imports decides whether glibc returns the memory of each step to the system.
    malloc = {"MALLOC_MMAP_THRESHOLD_": str(1 << 28), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
    return {**os.environ, "OMP_NUM_THREADS": "1", **malloc, **more}


def run(command: list[str], folder: str, **more: str) -> str:
    done = subprocess.run(command, cwd=folder, env=environment(**more), capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{command}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def step_times(path: Path) -> dict[str, float]:
    """The median step, and the mean CPU time of a step: of the training thread, and of the whole process."""
    times = list(zip(*json.loads(path.read_text())[WARM:], strict=True))
    steps = [later - earlier for earlier, later in itertools.pairwise(times[0])]
    means = [(clock[-1] - clock[0]) / len(steps) for clock in times[1:]]
    return dict(zip(CLOCKS, (statistics.median(steps), *means), strict=True))


def by_vario(case: str, steps: int, ranks: int = 1) -> tuple[str, dict[str, float]]:
    """The verdict of `vario report`, and the times of a step."""
    with tempfile.TemporaryDirectory() as place:
        many = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        words = [sys.executable, *many, "-m", "vario", "run", str(TRAIN), case, str(steps), f"{place}/ends.json"]
        run(words, place)
        told = json.loads(run([sys.executable, "-m", "vario", "report", "--json"], place))["time"]
        return f"{told['kind']}: {told['text']}", step_times(Path(place) / "ends.json")


def by_traceml(chosen: argparse.Namespace, case: str, steps: int, ranks: int = 1) -> tuple[str, dict[str, float]]:
    """The verdict of its summary, and the times of a step."""
    with tempfile.TemporaryDirectory() as place:
        words = [str(chosen.traceml / "traceml"), "run", str(TRAIN), f"--nproc-per-node={ranks}"]
        words += [f"--aggregator-port={free_port()}", "--args", case, str(steps), f"{place}/ends.json"]
        run(words, place, TRACED="1")
        (summary,) = Path(place).glob("logs/*/final_summary.json")
        told = json.loads(summary.read_text())["primary_diagnosis"]
        return f"{told['kind']}: {told['summary']}", step_times(Path(place) / "ends.json")


def plain(python: str | Path, steps: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        run([str(python), str(TRAIN), "compute", str(steps), f"{place}/ends.json"], place)
        return step_times(Path(place) / "ends.json")


def overhead(chosen: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Times of a step in seconds, once for each repeat; the plain runs stand beside each tool's own."""
    steps = chosen.overhead_steps
    found: dict[str, list[dict[str, float]]] = {
        name: [] for name in ("plain", "vario", "plain beside TraceML", "TraceML")
    }
    for _ in range(chosen.repeats):
        found["plain"].append(plain(sys.executable, steps))
        found["vario"].append(by_vario("compute", steps)[1])
        found["plain beside TraceML"].append(plain(chosen.traceml / "python", steps))
        found["TraceML"].append(by_traceml(chosen, "compute", steps)[1])
        print({name: [f"{1e3 * each:.2f}" for each in times[-1].values()] for name, times in found.items()}, flush=True)
    return found


def print_table(found: dict[str, Any]) -> None:
    width = shutil.get_terminal_size().columns
    for case, said in found["verdicts"].items():
        for name, verdict in said.items():
            print(f"{case:12} {name:8} {verdict}"[:width])
    for name, without in (("vario", "plain"), ("TraceML", "plain beside TraceML")) if found["overhead"] else ():
        for clock in CLOCKS:
            with_it, plainly = (
                statistics.median(times[clock] for times in found["overhead"][which]) for which in (name, without)
            )
            more = 1e3 * (with_it - plainly)
            print(f"{name}, {clock}: {1e3 * with_it:.2f} ms, {1e3 * plainly:.2f} without, {more:+.2f} ms")


if __name__ == "__main__":
    main()
