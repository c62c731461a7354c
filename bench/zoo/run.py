"""Record the zoo and score detectors on it: `python bench/zoo/run.py [--set dev|held-out|all] [--fault NAME]`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from zoo import healthy, own, peers, report
from zoo.faults import all_faults
from zoo.record import DEV_SEEDS, HELD_OUT_SEEDS, RUNS, Job, Recorded, clear, fault_job, fault_runs, twin_job
from zoo.score import Detector, FaultScore, HealthyScore, failure_step, losses_of, score_fault, score_healthy
from zoo.training import BUDGET
from zoo.workers import record_all

DETECTORS: dict[str, Detector] = {
    "vario": own.rules,
    "vario, as watched by default": own.rules_as_watched_by_default,
    **peers.DETECTORS,
}
QUICK = ("nan_kernel", "lr_jump", "data_stuck", "dead_relu", "rank_desync", "frozen_param", "expert_starved")
QUICK_HEALTHY = ("text-cosine", "cnn-sgd-wsd", "text-constant", "mlp-fp16")


PARTS = ("finite", "data", "forward", "update", "optimizer", "ranks", "building", "thresholds")
"""What the files of faults end in; the exam is recorded only when it is asked for."""


def main() -> None:
    options = parse(sys.argv[1:])
    if options.budget:
        os.environ[BUDGET] = options.budget
    seeds = {"dev": DEV_SEEDS, "held-out": HELD_OUT_SEEDS, "all": (*DEV_SEEDS, *HELD_OUT_SEEDS)}[options.set]
    seeds = tuple(options.seed or seeds)
    halves = {"dev": (False,), "held-out": (True,), "all": (False, True)}[options.set]
    parts = PARTS if options.part is None else (options.part,)
    known = [name for name, fault in all_faults().items() if re.split("[._]", fault.__module__)[-1] in parts]
    faults = options.fault or (QUICK if options.quick else known)
    calm = [each for each in healthy.ALL if each.is_held_out in halves and not options.fault and not options.part]
    if options.quick:
        calm = [each for each in calm if each.name in QUICK_HEALTHY]
        seeds = seeds[:1]
    if not options.no_record:
        jobs: list[Job] = []
        for seed in seeds:
            for fault in faults:
                jobs += [twin_job(fault, seed), fault_job(fault, seed)]
        jobs += [each.job for each in calm]
        if options.again:
            for job in jobs:
                clear(job, options.runs)
        failures = record_all(jobs, options.jobs, options.runs)
        for failure in failures:
            print(f"{failure.job.name} could not be recorded:\n{failure.error}", file=sys.stderr)
        if failures:
            raise SystemExit(1)
    runs = fault_runs(faults, seeds, options.runs)
    if options.describe:
        describe(runs)
        return
    names = options.detector or list(DETECTORS)
    wanted = {each.job.name for each in calm}
    ordinary = [run for half in halves for run in healthy.healthy_runs(half, runs=options.runs)]
    changed = [run for half in halves for run in healthy.healthy_runs(half, True, options.runs)]
    ordinary, changed = ([run for run in found if run.job.name in wanted] for found in (ordinary, changed))
    print(f"{len(runs)} fault runs, {len(ordinary)} healthy ones, seeds {', '.join(map(str, seeds))}\n")
    faulty, quiet, benign = score_all(names, runs, ordinary, changed, options.jobs)
    rows = {}
    for name in names:
        rows[name] = report.overall(faulty[name], quiet[name])
        if options.detector:
            print(f"{name}\n\n{report.faults_text(faulty[name])}\n\n{report.rules_text(faulty[name], quiet[name])}\n")
            for origin in ("sheet", "own", "second"):
                chosen = [score for score in faulty[name] if all_faults()[str(score.run.job.fault)].origin == origin]
                rows[f"{name}: {origin}"] = report.overall(chosen, [])
            rows[f"{name}: benign changes"] = report.overall([], benign[name])
    print(report.overall_text(rows))


Scores = tuple[str, FaultScore | HealthyScore]


def score_all(
    names: Sequence[str],
    runs: Sequence[Recorded],
    ordinary: Sequence[Recorded],
    changed: Sequence[Recorded],
    side_by_side: int,
) -> tuple[dict[str, list[FaultScore]], dict[str, list[HealthyScore]], dict[str, list[HealthyScore]]]:
    """All detectors on all runs, in several processes; runs that share a twin go together."""
    groups: dict[str, list[Recorded]] = {}
    for run in [*runs, *ordinary, *changed]:
        groups.setdefault(str(run.twin or run.path), []).append(run)
    found: dict[tuple[str, str], FaultScore | HealthyScore] = {}
    with ProcessPoolExecutor(side_by_side, get_context("spawn")) as pool:
        for scores in pool.map(score_group, repeat(names), groups.values()):
            found |= {(name, score.run.job.name): score for name, score in scores}

    def of(chosen: Sequence[Recorded]) -> dict[str, list[Any]]:
        return {name: [found[name, run.job.name] for run in chosen] for name in names}

    return of(runs), of(ordinary), of(changed)


def score_group(names: Sequence[str], runs: Sequence[Recorded]) -> list[Scores]:
    """Each folder is read once, and each twin looked at once by each detector."""
    detectors = {name: lru_cache(maxsize=2)(DETECTORS[name]) for name in names}
    return [
        (name, score_healthy(detector, run) if run.truth is None else score_fault(detector, run))
        for run in runs
        for name, detector in detectors.items()
    ]


def describe(runs: Sequence[Recorded]) -> None:
    """What each fault does: where and when, and what became of the loss."""
    print(f"{'fault':26} {'seed':>4} {'model':12} {'t0':>4} {'t_f':>4} {'loss':>9} {'twin':>9}  where and what")
    for run in runs:
        assert run.truth is not None
        assert run.twin is not None
        truth, own, other = run.truth, losses_of(run.path), losses_of(run.twin)
        failed = failure_step(own, other, truth.t0)
        where = truth.site or truth.scope
        rank = "" if truth.rank is None else f" on rank {truth.rank}"
        ends = f"{own[-5:].mean():9.3g} {other[-5:].mean():9.3g}"
        head = f"{run.job.fault:26} {run.job.seed:4} {run.job.setup.model:12} {truth.t0:4}"
        print(f"{head} {'-' if failed is None else failed:>4} {ends}  {where}{rank}: {truth.note}")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Record the fault zoo and score detectors on it.")
    parser.add_argument("--set", choices=("dev", "held-out", "all"), default="dev", help="which seeds and healthy runs")
    parser.add_argument("--seed", action="append", type=int, help="only this seed; may be repeated")
    parser.add_argument("--fault", action="append", choices=list(all_faults()), help="only this one; may be repeated")
    parser.add_argument("--part", choices=("building", "thresholds", "exam"), help="faults of the second round")
    parser.add_argument("--quick", action="store_true", help="a few faults and healthy runs, one seed")
    parser.add_argument("--describe", action="store_true", help="print what each fault does instead of scores")
    parser.add_argument("--detector", action="append", choices=list(DETECTORS), help="only this one, in detail")
    parser.add_argument("--no-record", action="store_true", help="score what is there")
    parser.add_argument("--again", action="store_true", help="record anew what is there, after a change in vario")
    parser.add_argument("--jobs", type=int, default=2, help="processes that record or score side by side")
    parser.add_argument("--budget", help="record at the intervals this overhead budget leaves (2%%), into --runs")
    parser.add_argument("--runs", type=Path, default=RUNS, help="where runs are kept")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
