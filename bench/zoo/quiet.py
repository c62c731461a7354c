"""Count what rules say on the library of healthy loops: `python bench/zoo/quiet.py [--half tune|held-out|both]`.

Each loop is recorded once, watched by the default settings, and rules are replayed over the folder, as by `vario check
--replay`. After a change of a rule nothing is recorded again; after a change of a probe, `--again`.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import inspect
import json
import logging
import os
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import vario
from vario.rules import RULES
from vario.runs.findings.check import check
from zoo.healthy.loops import Loop, all_loops
from zoo.own import kept_by_default
from zoo.tails import upper_rate

RUNS = Path(__file__).parent / ".runs" / "loops"
DONE = "loop.json"
SEVERITIES = ("page", "warn", "note")
WATCHED: dict[str, dict[str, Any]] = {
    "default": {},
    "no-budget": {"overhead": "off"},
    "each-step": {"every": 1},
}
"""How a loop is watched: as by default, at the default intervals without a budget, or at each step."""


@dataclass(frozen=True)
class Said:
    """One incident on a healthy run."""

    loop: str
    step: int
    severity: str
    rule: str
    text: str


def folder(loop: Loop, watched: str, runs: Path) -> Path:
    """Where a loop's run is kept: under a key of its code."""
    content = json.dumps([inspect.getsource(loop.recipe), dict(loop.options), loop.steps, watched])
    return runs / f"{loop.name}-{watched}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"


def record(loop: Loop, watched: str, runs: Path) -> Path:
    """Train a loop, unless it was recorded."""
    path = folder(loop, watched, runs)
    if (path / DONE).is_file():
        return path
    shutil.rmtree(path, ignore_errors=True)
    began = time.perf_counter()
    watch = partial(vario.watch, directory=str(path.parent), name=path.name, **WATCHED[watched])
    loop.train(watch)
    run = vario.open_run(path)
    if run.parts_off:
        raise RuntimeError(f"{loop.name}: vario switched off {run.parts_off}")
    (path / DONE).write_text(json.dumps({"loop": loop.name, "steps": run.last_step + 1}), encoding="utf8")
    print(f"{loop.name}: {run.last_step + 1} steps, {time.perf_counter() - began:.1f} s", flush=True)
    return path


def incidents(loop: Loop, path: Path, is_live: bool, is_sparse: bool) -> list[Said]:
    """What rules say of a recorded run: replayed, or as stored while it trained."""
    run = vario.open_run(path)
    keep = kept_by_default if is_sparse else None
    found = run.incidents if is_live else check(run, rules=True, keep=keep).incidents
    return [Said(loop.name, each.step, each.severity, each.lead.rule, each.lead.text) for each in found]


def report(said: Sequence[Said], steps: int, num: int) -> str:
    """Rates by severity, by rule, and every sentence."""
    lines = [
        f"{each.loop:28} {each.step:4} {each.severity:4} {each.rule:20} {each.text[:130]}"
        for each in sorted(said, key=lambda each: (each.rule, each.loop, each.step))
    ]
    lines += ["", f"{num} loops, {steps} steps; incidents per 1,000 steps:"]
    lines.append(
        "  ".join(f"{name} {1000 * _count(said, name) / steps:.2f} ({_count(said, name)})" for name in SEVERITIES)
    )
    rules = collections.Counter((each.rule, each.severity) for each in said)
    lines += [f"  {rule:22} {severity:5} {count:4}" for (rule, severity), count in rules.most_common()]
    return "\n".join(lines)


def _count(said: Iterable[Said], severity: str) -> int:
    return sum(each.severity == severity for each in said)


def main() -> None:
    options = parse(sys.argv[1:])
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("vario").setLevel(logging.ERROR)
    chosen = choose(options.half, options.loop, options.file)
    if options.list:
        print("\n".join(one.name for one in chosen))
        return
    said: list[Said] = []
    steps = num = 0
    for one in chosen:
        if options.again:
            shutil.rmtree(folder(one, options.watched, options.runs), ignore_errors=True)
        try:
            path = record(one, options.watched, options.runs)
        except Exception:  # noqa: BLE001 - one loop that fails must not end the others
            print(f"{one.name} could not be recorded:\n{traceback.format_exc()}", flush=True)
            continue
        num += 1
        steps += json.loads((path / DONE).read_text(encoding="utf8"))["steps"]
        if not options.record_only:
            said += incidents(one, path, options.live, options.sparse)
    if not options.record_only:
        print(report(said, steps, num))
    if options.rates is not None:
        save_rates(said, steps, num, options.rates)


def choose(half: str, names: Sequence[str] = (), file: str = "*") -> list[Loop]:
    """The loops of one half or both, of files of recipes that match a pattern; or those that are named."""
    halves = {"tune": (False,), "held-out": (True,), "both": (False, True)}[half]
    chosen = [one for one in all_loops().values() if one.is_held_out in halves and fnmatch(one.file, file)]
    return [one for one in chosen if not names or one.name in names or one.recipe.__name__ in names]


def save_rates(said: Sequence[Said], steps: int, num: int, path: Path) -> None:
    """Write how often each rule led an incident on healthy loops, and the rates per 1,000 steps that this rules out.

    The page about rules states both.
    """
    counts = collections.Counter((each.rule, each.severity) for each in said)
    rules = {
        rule: {severity: counts[rule, severity] for severity in SEVERITIES if counts[rule, severity]}
        for rule in sorted({rule for rule, _ in counts})
    }
    numbers = {0, *(sum(counts.values()) for counts in rules.values())}
    limits = {str(number): round(upper_rate(number, steps), 4) for number in sorted(numbers)}
    content = {
        "loops": num,
        "steps": steps,
        "at_most": limits,
        "rules": rules,
        "measured": sorted(found.name for found in RULES),
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf8")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Count what rules say on healthy loops.")
    parser.add_argument("--half", choices=("tune", "held-out", "both"), default="tune", help="which loops")
    parser.add_argument("--loop", action="append", default=[], help="only this one, with its variants; may be repeated")
    parser.add_argument("--file", default="*", help="only of files of recipes that match this: 'fifth_*'")
    parser.add_argument("--watched", choices=list(WATCHED), default="default", help="how loops are watched")
    parser.add_argument("--sparse", action="store_true", help="of what was watched at each step, look at the default")
    parser.add_argument("--live", action="store_true", help="count what was said while training, not a replay")
    parser.add_argument("--again", action="store_true", help="record anew, after a change in vario's probes")
    parser.add_argument("--record-only", action="store_true", help="say nothing")
    parser.add_argument("--rates", type=Path, help="write the rates of each rule here, for the page about rules")
    parser.add_argument("--list", action="store_true", help="print the names of loops")
    parser.add_argument("--runs", type=Path, default=RUNS, help="where runs are kept")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
