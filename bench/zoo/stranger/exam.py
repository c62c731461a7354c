"""Record every program of the exam under vario, and score what vario said.

python exam.py record --directory FOLDER [--set second] [--jobs 2] [--seed 7] [--only NAME ...]
python exam.py score --directory FOLDER [--set second] [--only NAME ...] [--json FILE]

`record` goes on where it stopped. `score` reads runs through vario's public Python API only. See README.md.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SETS = {"first": HERE, "second": HERE / "second", "third": HERE / "third", "own": HERE / "own"}
WITHIN = 60  # steps after a fault in which it has to be found, unless truth.json gives it longer
PLANNED = 20  # steps after a planned change of a healthy run that are counted apart
URGENT = ("warn", "page")


@dataclass(frozen=True)
class Task:
    """One run to record."""

    name: str
    program: str
    options: tuple[str, ...]


@dataclass
class Result:
    """What vario said about one fault."""

    program: str
    fault: str
    begin: int
    found: bool = False
    usable: bool = False
    place: bool = False
    cause: bool = False
    cause_with_first_title: bool = False
    cause_without_titles: bool = False
    delay: int | None = None
    severity: str = ""
    rules: list[str] = field(default_factory=list)
    false_before: list[str] = field(default_factory=list)
    said: str = ""
    hypotheses: list[str] = field(default_factory=list)
    truth: str = ""


def read_truth(path: Path = HERE / "truth.json") -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def tasks(truth: dict[str, Any], seed: int, only: Sequence[str]) -> list[Task]:
    """All runs: healthy twins, faults, further healthy programs."""
    twins = [{"program": program, "fault": "none"} for program in truth["programs"]]
    found = [
        Task(f"{row['program']}--{row['fault']}", row["program"], ("--fault", row["fault"]))
        for row in [*twins, *truth["faults"]]
    ]
    for row in truth["healthy"]:
        recipe = ("--recipe", row["recipe"]) if row.get("recipe") else ()
        found.append(Task(f"{row['program']}--{row.get('recipe') or 'healthy'}", row["program"], recipe))
    chosen = [task for task in found if not only or any(fnmatch.fnmatch(task.name, pattern) for pattern in only)]
    return [Task(task.name, task.program, (*task.options, "--seed", str(seed))) for task in chosen]


def read_records(directory: Path) -> dict[str, dict[str, Any]]:
    path = directory / "record.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["name"]: row for row in map(json.loads, lines)}


def record(directory: Path, wanted: Sequence[Task], jobs: int, programs: Path) -> None:
    """Run what is not recorded yet, each in a process of its own."""
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    known, lock = read_records(directory), threading.Lock()

    def one(task: Task) -> None:
        for left_over in (directory / "runs").glob(f"{task.name}*"):
            if left_over.name == task.name or re.fullmatch(r"-\d+", left_over.name.removeprefix(task.name)):
                shutil.rmtree(left_over)
        script = str(programs / f"{task.program}.py")
        options = ["--name", task.name, "--directory", str(directory / "runs")]
        command = [sys.executable, "-m", "vario", "run", *options, script, *task.options]
        out, err = (directory / "logs" / f"{task.name}.{kind}" for kind in ("out", "err"))
        started = time.monotonic()
        with out.open("w") as stdout, err.open("w") as stderr:
            try:
                code = subprocess.run(command, stdout=stdout, stderr=stderr, timeout=900, check=False).returncode
            except subprocess.TimeoutExpired:
                code = -1
        begins = re.findall(r"^FAULT_STEP (\d+)$", err.read_text(), re.MULTILINE)
        row = {
            "name": task.name,
            "options": task.options,
            "exit": code,
            "seconds": round(time.monotonic() - started, 2),
            "begin": int(begins[0]) if begins else None,
            "lines": len(re.findall(r"^step \d+ ", out.read_text(), re.MULTILINE)),
        }
        with lock, (directory / "record.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
            print(f"{task.name}: exit {code}, {row['seconds']} s", flush=True)

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        list(pool.map(one, [task for task in wanted if task.name not in known]))


def began(incident: Any) -> int:
    """The first step that shows what an incident is led by."""
    return int(min(incident.lead.began, incident.step))


def bare(target: str | None) -> str:
    """A module's or parameter's name without the side, the moment or the statistic after the colon."""
    return (target or "").split(":")[0]


def is_at(target: str | None, place: str) -> bool:
    """Whether a target is inside the true place or contains it. The whole model contains everything: it does not count.

    A name that vario puts before it, such as the variable that holds the model, is ignored.
    """
    name = bare(target)
    if not name or name == "root":
        return False
    return f".{place}." in f".{name}." or f".{place}.".startswith(f".{name}.")


def blames_nobody(incident: Any) -> bool:
    """Whether a finding is about the whole run, its batches or a plain number, not about one tensor."""
    if incident.scope in ("global", "batch") or incident.place is None or incident.lead.quantity == "scalar":
        return True
    return bare(incident.place) in ("", "root") or bare(incident.lead.target) in ("", "root")


def place_is_right(incident: Any, row: dict[str, Any]) -> bool:
    if any(is_at(target, place) for place in row["places"] for target in (incident.place, incident.lead.target)):
        return True
    return (not row["places"] or row.get("or_global", False)) and blames_nobody(incident)


def matches(patterns: Sequence[str], text: str) -> bool:
    """Whether a text says the cause. Names of tensors in it do not count: they often contain such words."""
    text = re.sub(r"'[\w.:-]+'", "it", text)
    return any(re.search(pattern, text, re.IGNORECASE) for pattern in patterns)


def open_run(directory: Path, name: str) -> Any:
    import vario

    return vario.open_run(directory / "runs" / name)


def judge(directory: Path, row: dict[str, Any], recorded: dict[str, Any], twin: str | None) -> Result:
    """Compare what was said about a fault with the truth."""
    import vario

    begin = recorded["begin"]
    result = Result(row["program"], row["fault"], begin, truth=row["cause"])
    last = begin + row.get("within", WITHIN)
    run = open_run(directory, recorded["name"])
    incidents = list(run.incidents)
    same = list(open_run(directory, twin).incidents) if twin else []
    usual = {incident.lead.rule for incident in same if begin - 1 <= began(incident) <= last}
    true = [found for found in incidents if begin - 1 <= began(found) <= last and found.lead.rule not in usual]
    early = [found for found in incidents if began(found) < begin - 1 and found.severity in URGENT]
    result.found = bool(true)
    result.usable = bool(true) and not early
    result.false_before = [f"{found.severity} {found.lead.rule} at step {found.step}" for found in early]
    result.rules = [f"{found.lead.rule} ({found.severity}, step {found.step})" for found in true]
    if true:
        result.delay = min(began(found) for found in true) - begin
        result.severity = max((found.severity for found in true), key=("note", "warn", "page").index)
    diagnosis = vario.diagnose(run)
    result.said = str(diagnosis)
    result.hypotheses = [f"{reason.share:.0%} {reason.title}" for reason in diagnosis.hypotheses]
    first = diagnosis.first
    if first is None or not true or not begin - 1 <= began(first) <= last:
        return result
    likely = re.findall(r"Likely cause: (.*?)(?: Next: |$)", result.said, re.DOTALL)
    text = "\n".join([first.lead.text, first.lead.cause, first.cause, *likely])
    titles = [reason.title for reason in diagnosis.hypotheses]
    result.place = place_is_right(first, row)
    result.cause = matches(row["patterns"], "\n".join([text, *titles]))
    result.cause_with_first_title = matches(row["patterns"], "\n".join([text, *titles[:1]]))
    result.cause_without_titles = matches(row["patterns"], text)
    return result


def score_faults(directory: Path, truth: dict[str, Any], only: Sequence[str]) -> list[Result]:
    records = read_records(directory)
    results = []
    for row in truth["faults"]:
        name, twin = f"{row['program']}--{row['fault']}", f"{row['program']}--none"
        if (only and not any(fnmatch.fnmatch(name, pattern) for pattern in only)) or name not in records:
            continue
        try:
            result = judge(directory, row, records[name], twin if twin in records else None)
        except Exception as error:  # noqa: BLE001  one unreadable run must not hide the others
            result = Result(row["program"], row["fault"], records[name]["begin"] or 0, said=f"not readable: {error!r}")
        results.append(result)
        marks = [label for label in ("found", "usable", "place", "cause") if getattr(result, label)]
        print(f"\n{name}: step {result.begin}, exit {records[name]['exit']}: {', '.join(marks) or 'missed'}")
        print(f"  truth: {row['scope']}; {', '.join(row['places']) or 'no single place'}; {row['cause']}")
        for label, lines in (("found", result.rules), ("false before", result.false_before)):
            if lines:
                print(f"  {label}: {'; '.join(lines)}")
        print(f"  said: {result.said}")
        for line in result.hypotheses:
            print(f"    {line}")
    return results


def score_healthy(
    directory: Path, truth: dict[str, Any], only: Sequence[str]
) -> tuple[int, Counter[str], Counter[str]]:
    """Count the incidents of healthy runs: all of them, and those right after a planned change."""
    records = read_records(directory)
    rows = [{"program": program, "recipe": "none"} for program in truth["programs"]] + truth["healthy"]
    steps, counts, planned = 0, Counter[str](), Counter[str]()
    for row in rows:
        name = f"{row['program']}--{row.get('recipe') or 'healthy'}"
        if (only and not any(fnmatch.fnmatch(name, pattern) for pattern in only)) or name not in records:
            continue
        run = open_run(directory, name)
        seen = run.steps("scalar")
        length = int(seen[-1]) + 1 if len(seen) else 0
        steps += length
        print(f"\n{name}: healthy, exit {records[name]['exit']}, {length} steps")
        for incident in run.incidents:
            at_change = any(change <= began(incident) <= change + PLANNED for change in row.get("changes", ()))
            counts[incident.severity] += 1
            planned[incident.severity] += at_change
            where = " (planned change)" if at_change else ""
            lead = incident.lead
            print(f"  {incident.severity} {lead.rule} at step {incident.step}{where}: {lead.text}; {incident.cause}")
    return steps, counts, planned


def percent(results: Sequence[Result], label: str) -> str:
    count = sum(getattr(result, label) for result in results)
    return f"{count} of {len(results)} ({count / max(len(results), 1):.0%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record", "score"])
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=[], help="names or globs, such as 'vae--*'")
    parser.add_argument("--set", choices=SETS, default="first", help="which programs and which truth")
    parser.add_argument("--truth", type=Path, help="instead of the set's own")
    parser.add_argument("--programs", type=Path, help="instead of the set's own")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder, directory = SETS[options.set], options.directory.resolve()
    truth = read_truth(options.truth or folder / "truth.json")
    if options.action == "record":
        programs = (options.programs or folder / "programs").resolve()
        record(directory, tasks(truth, options.seed, options.only), options.jobs, programs)
        return
    results = score_faults(directory, truth, options.only)
    steps, counts, planned = score_healthy(directory, truth, options.only)
    print("\nfaults")
    for label in ("found", "usable", "place", "cause", "cause_with_first_title", "cause_without_titles"):
        print(f"  {label.replace('_', ' ')}: {percent(results, label)}")
    for scope in sorted({row["scope"] for row in truth["faults"]}):
        names = {(row["program"], row["fault"]) for row in truth["faults"] if row["scope"] == scope}
        some = [result for result in results if (result.program, result.fault) in names]
        print(f"    {scope}: usable {percent(some, 'usable')}, cause {percent(some, 'cause')}")
    print(f"healthy steps: {steps}")
    for severity in ("page", "warn", "note"):
        rest = counts[severity] - planned[severity]
        rates = [f"{1000 * count / max(steps, 1):.2f}" for count in (counts[severity], rest)]
        print(f"  {severity}: {counts[severity]}, {rates[0]} per 1,000 steps; without planned changes {rates[1]}")
    if options.json:
        healthy = {"steps": steps, "counts": counts, "planned": planned}
        options.json.write_text(json.dumps({"faults": [asdict(result) for result in results], "healthy": healthy}))


if __name__ == "__main__":
    main()
