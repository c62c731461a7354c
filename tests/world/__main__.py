"""Watch every program of `programs/`, or those named; `--write PAGE` makes a page of the results.

Started as `python tests/world`; `make world` does so in an environment with all the packages.
"""

import argparse
import datetime
import sys
import tempfile
from importlib import metadata
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from driver import Outcome, programs, watch_program

from starting import start_afresh, start_warm

PACKAGES = (
    *("torch", "transformers", "accelerate", "peft", "trl", "lightning", "diffusers", "sentence-transformers"),
    *("stable-baselines3", "gymnasium", "torch-geometric", "pytorch-ignite", "skorch", "x-transformers"),
    *("schedulefree", "torchao", "bitsandbytes", "nbconvert"),
)
HEAD = """# Programs that know nothing of vario

Written by `make world`, {date}, Python {python}: {versions}.

Each program below runs twice, by `python` and by `vario run`, with vario's defaults, on a CPU, seeded. {how} It passes
when

- the exit code and everything it prints, losses as hexadecimal floats among it, are the same;
- vario counts the steps that the program says it took;
- a loss is recorded; *equal* means that each step's is the number the program printed, bit by bit;
- no part of the monitor was switched off;
- no alert is above severity `note`. The column has the number of notes.

Where vario cannot follow the updates (`func_grad`, `evolution`), no steps are expected, and the program passes when
vario says why there is no run. A program that never calls backward (`per_sample_gradients`) has no loss to be found.
`tests/world/programs` has them all; a third of them is part of `make test`.
"""
TABLE = """
## {title}

| program | what it does | runs | steps | loss | notes | |
| --- | --- | --- | --- | --- | --- | --- |
"""
FRESH = "Each time it is a process of its own."
WARM = "Each time it is a copy of a process that has imported torch."
TITLES = {"loops": "Loops", "packages": "Packages"}


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", type=Path, metavar="PAGE")
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    parser.add_argument("--warm", action="store_true", help="copies of a process that has imported torch: faster")
    parser.add_argument("--option", action="append", default=[], help="of vario run, such as --option=--every=1")
    wanted = parser.parse_args(arguments)
    start = start_warm if wanted.warm else start_afresh
    found = {kind: [] for kind in TITLES}
    for kind, outcomes in found.items():
        for path in programs(kind):
            if not wanted.names or path.stem in wanted.names:
                with tempfile.TemporaryDirectory() as folder:
                    outcome = watch_program(path, Path(folder), start, wanted.option)
                tell(outcome)
                outcomes.append(outcome)
                if wanted.write:  # each time: a run that is stopped half way leaves what it has seen
                    wanted.write.write_text(page(found, wanted.date, WARM if wanted.warm else FRESH))
    return int(any(outcome.problems for outcomes in found.values() for outcome in outcomes))


def tell(outcome):
    print(f"{'failed' if outcome.problems else 'passed'}  {outcome.name}", flush=True)
    for problem in outcome.problems:
        print(f"        {problem}", flush=True)


def page(found, date, how):
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    text = HEAD.format(date=date, python=".".join(map(str, sys.version_info[:3])), versions=versions, how=how)
    missing = sum(len(programs(kind)) - len(outcomes) for kind, outcomes in found.items())
    if missing:
        text += f"\nThis time {missing} programs were left out.\n"
    for kind, outcomes in found.items():
        text += TABLE.format(title=TITLES[kind]) + "".join(map(row, outcomes))
        for outcome in outcomes:
            for problem in outcome.problems:
                text += f"\n`{outcome.name}`: {problem}\n"
    return text


def row(outcome: Outcome) -> str:
    steps = str(outcome.steps)
    if outcome.steps != outcome.expected_steps:
        steps += f" of {outcome.expected_steps}"
    result = "fails" if outcome.problems else "passes"
    cells = (f"`{outcome.name}`", outcome.summary, outcome.runs, steps, outcome.loss, outcome.notes, result)
    return "| " + " | ".join(map(str, cells)) + " |\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
