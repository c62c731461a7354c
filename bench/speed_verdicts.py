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
WARM = 20
"""Steps that do not count for the overhead."""


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--traceml", type=Path, required=True, help="the bin folder of an environment with TraceML")
    options.add_argument("--cases", nargs="*", default=[*ONE, *TWO], help="only these, and no overhead")
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
    if len(chosen.cases) == len(ONE) + len(TWO):
        found["overhead"] = overhead(chosen)
    chosen.out.write_text(json.dumps(found, indent=1) + "\n")
    print_table(found)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def run(command: list[str], folder: str, **more: str) -> str:
    done = subprocess.run(command, cwd=folder, env=environment(**more), capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{command}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def median_step(path: Path) -> float:
    ends = json.loads(path.read_text())[WARM:]
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(ends))


def by_vario(case: str, steps: int, ranks: int = 1) -> tuple[str, float]:
    """The verdict of `vario report`, and the median step."""
    with tempfile.TemporaryDirectory() as place:
        many = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        words = [sys.executable, *many, "-m", "vario", "run", str(TRAIN), case, str(steps), f"{place}/ends.json"]
        run(words, place)
        told = json.loads(run([sys.executable, "-m", "vario", "report", "--json"], place))["time"]
        return f"{told['kind']}: {told['text']}", median_step(Path(place) / "ends.json")


def by_traceml(chosen: argparse.Namespace, case: str, steps: int, ranks: int = 1) -> tuple[str, float]:
    """The verdict of its summary, and the median step."""
    with tempfile.TemporaryDirectory() as place:
        words = [str(chosen.traceml / "traceml"), "run", str(TRAIN), f"--nproc-per-node={ranks}"]
        words += [f"--aggregator-port={free_port()}", "--args", case, str(steps), f"{place}/ends.json"]
        run(words, place, TRACED="1")
        (summary,) = Path(place).glob("logs/*/final_summary.json")
        told = json.loads(summary.read_text())["primary_diagnosis"]
        return f"{told['kind']}: {told['summary']}", median_step(Path(place) / "ends.json")


def plain(python: str | Path, steps: int) -> float:
    with tempfile.TemporaryDirectory() as place:
        run([str(python), str(TRAIN), "compute", str(steps), f"{place}/ends.json"], place)
        return median_step(Path(place) / "ends.json")


def overhead(chosen: argparse.Namespace) -> dict[str, list[float]]:
    """Median steps in seconds, one for each repeat; the plain runs stand beside each tool's own."""
    steps = chosen.overhead_steps
    found: dict[str, list[float]] = {name: [] for name in ("plain", "vario", "plain beside TraceML", "TraceML")}
    for _ in range(chosen.repeats):
        found["plain"].append(plain(sys.executable, steps))
        found["vario"].append(by_vario("compute", steps)[1])
        found["plain beside TraceML"].append(plain(chosen.traceml / "python", steps))
        found["TraceML"].append(by_traceml(chosen, "compute", steps)[1])
        print({name: f"{1e3 * values[-1]:.2f} ms" for name, values in found.items()}, flush=True)
    return found


def print_table(found: dict[str, Any]) -> None:
    width = shutil.get_terminal_size().columns
    for case, said in found["verdicts"].items():
        for name, verdict in said.items():
            print(f"{case:12} {name:8} {verdict}"[:width])
    if not found["overhead"]:
        return
    middle = {name: statistics.median(values) for name, values in found["overhead"].items()}
    for name, without in (("vario", "plain"), ("TraceML", "plain beside TraceML")):
        share = middle[name] / middle[without] - 1
        print(f"{name}: {1e3 * middle[name]:.2f} ms a step, {1e3 * middle[without]:.2f} without, {100 * share:+.1f} %")


if __name__ == "__main__":
    main()
