"""Recorded runs: what is to be recorded, what is there already, and how a run is looked up again.

A run is kept under a key of all that decides it: setup, seed, fault, quantities, and the text of the code that makes
it. So a changed fault is recorded anew and nothing else is. A folder without `zoo.json` was not finished.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vario import Config, ConfigError
from vario.core.quantities import watchable
from zoo.setups import Setup, nth_of, setup_for
from zoo.truth import Truth

FORMAT = 1
RUNS = Path(__file__).parent / ".runs"
DEV_SEEDS, HELD_OUT_SEEDS = (0, 1, 100, 101, 200, 201), (300, 301)
# Without moments and activation gradients, which only the rule about NaN looks at: recording takes a third less time.
WANTED: tuple[str, ...] = ("gradient", "weight", "activation")
WANTED += ("update", "unexpected_change", "attention", "unit", "expert")
NOTE = "zoo.json"


@dataclass(frozen=True)
class Job:
    """One run to be recorded."""

    label: str
    """What the run is of: a fault, `twin-` and its setup, or `healthy-` and its name."""
    setup: Setup
    seed: int
    fault: str | None = None

    @property
    def quantities(self) -> list[str]:
        offered = set(offered_quantities())
        local = ["gradient_local"] if self.setup.ranks > 1 else []
        kept = [name for name in WANTED if name != "expert" or self.setup.model == "moe"]
        kept = [name for name in kept if name != "attention" or self.setup.model in ("transformer", "moe")]
        return [name for name in [*kept, *local] if name in offered]

    @property
    def name(self) -> str:
        """The run's folder."""
        content = json.dumps([self.setup.to_json(), self.seed, self.quantities, code_of(self.fault)], sort_keys=True)
        return f"{self.label}-{self.seed}-{hashlib.sha256(content.encode()).hexdigest()[:10]}"

    def to_json(self) -> dict[str, Any]:
        plain = {"label": self.label, "setup": self.setup.to_json(), "seed": self.seed, "fault": self.fault}
        return {**plain, "name": self.name, "quantities": self.quantities}


@dataclass(frozen=True)
class Recorded:
    """A run on disk. `truth` is None of healthy ones; `twin` is the same training without the fault."""

    job: Job
    path: Path
    truth: Truth | None
    twin: Path | None


def fault_job(fault: str, seed: int) -> Job:
    from zoo.faults import all_faults

    setups = all_faults()[fault].setups
    return Job(fault, setup_for(setups[nth_of(seed) % len(setups)], seed), seed, fault)


def twin_job(fault: str, seed: int) -> Job:
    from zoo.faults import all_faults

    setups = all_faults()[fault].setups
    name = setups[nth_of(seed) % len(setups)]
    return Job(f"twin-{name}", setup_for(name, seed), seed)


def is_recorded(job: Job, runs: Path = RUNS) -> bool:
    return (runs / job.name / NOTE).is_file()


def found_run(job: Job, twin: Job | None = None, runs: Path = RUNS) -> Recorded | None:
    """A recorded run with its twin; None where either is missing."""
    if not is_recorded(job, runs) or (twin is not None and not is_recorded(twin, runs)):
        return None
    note = json.loads((runs / job.name / NOTE).read_text(encoding="utf8"))
    truth = Truth.from_json(note["truth"]) if note["truth"] else None
    return Recorded(job, runs / job.name, truth, runs / twin.name if twin is not None else None)


def fault_runs(faults: Iterable[str], seeds: Iterable[int], runs: Path = RUNS) -> list[Recorded]:
    """All recorded runs of these faults and seeds, each with its twin."""
    seeds = list(seeds)
    found = [found_run(fault_job(fault, seed), twin_job(fault, seed), runs) for fault in faults for seed in seeds]
    return [run for run in found if run is not None]


def record_here(content: dict[str, Any], rank: int, runs: Path) -> None:
    """Train one job in this process, as one of its ranks, under `runs`."""
    from zoo.faults import Draw, all_faults
    from zoo.training import Training

    training = Training(Setup.from_json(content["setup"]), content["seed"], rank)
    truth = None
    if content["fault"] is not None:
        training.fault = all_faults()[content["fault"]](training, Draw(content["fault"], content["seed"]))
        truth = training.fault.truth.to_json()
    training.run(runs, content["name"], content["quantities"])
    if rank == 0:
        note = {**content, "truth": truth}
        (runs / content["name"] / "zoo.tmp").write_text(json.dumps(note, indent=1), encoding="utf8")


def finish(job: Job, runs: Path) -> None:
    """All ranks are done: from now on the run counts."""
    (runs / job.name / "zoo.tmp").rename(runs / job.name / NOTE)


def clear(job: Job, runs: Path) -> None:
    """Remove what a killed recorder left of this run."""
    shutil.rmtree(runs / job.name, ignore_errors=True)


@cache
def offered_quantities() -> tuple[str, ...]:
    """What can be watched with no further option."""
    found = []
    for name in watchable():
        with contextlib.suppress(ConfigError):
            Config(quantities=[name])
            found.append(name)
    return tuple(found)


@cache
def code_of(fault: str | None) -> str:
    """A hash of the code that decides a run: the common part, and the file its fault is in."""
    folder = Path(__file__).parent
    files = [folder / name for name in ("models.py", "samples.py", "training.py")]
    texts = [str(FORMAT), *(path.read_text(encoding="utf8") for path in files)]
    if fault is not None:
        from zoo.faults import all_faults

        texts.append((folder / "faults" / "__init__.py").read_text(encoding="utf8"))
        texts += [inspect.getsource(base) for base in all_faults()[fault].__mro__[:-2]]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
