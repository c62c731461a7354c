"""Find the thresholds that rules should have: `python bench/zoo/calibrate.py [--half both] [--save bench/zoo/...json]`.

Each recorded healthy loop is replayed with lower and higher thresholds, until a rule says no more: the highest at which
it still spoke is the score of that block of a thousand steps. The tail of all scores tells how often any threshold is
passed by chance, and the threshold for the rate that is wanted. Conditions about the size of a change are left as they
are: they say what matters, thresholds say what is no chance.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import vario
from vario.rules import RULES, Chosen, Step
from vario.rules.api.detector import Detector
from vario.rules.api.series_state import Memory
from vario.runs.files.budget import Budget
from vario.runs.findings.replay import rank_steps
from zoo import tails
from zoo.healthy.loops import Loop
from zoo.quiet import DONE, RUNS, WATCHED, choose, folder

OPTIONS = {
    "grad_spike": "threshold",
    "activation_jump": "threshold",
    "update_jump": "threshold",
    "level_shift": "threshold",
    "gradient_scale": "threshold",
    "stale_second_moment": "threshold",
    "grad_underflow": "threshold",
    "attn_entropy": "threshold",
    "attn_logit": "threshold",
    "validation_shift": "threshold",
    "loss_shift": "threshold",
    "loss_swings": "times",
    "drift": "times",
    "expert_imbalance": "times",
}
"""The option of each rule that says what is no chance."""
SEEN = {
    "activation_jump": "activation",
    "update_jump": "update",
    "level_shift": "activation",
    "grad_spike": "gradient",
    "drift": "activation",
    "stale_second_moment": "update",
    "grad_underflow": "gradient",
}
"""The quantity whose series a rule looks at, if there are many."""
FACTORS = tuple(0.5 * 1.15**power for power in range(28))
"""The thresholds that are tried, as parts of the default."""
BLOCK = 1000
WARMING = 40
"""The steps at the start of a run in which rules do not compare yet."""


@dataclass(frozen=True)
class Block:
    """Up to a thousand steps of one loop, and what rules scored in them."""

    loop: str
    recipe: str
    steps: int
    series: Mapping[str, int]
    """How many series of each quantity."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """The highest part of a rule's default threshold at which it spoke; rules that never did are missing."""


def main() -> None:
    options = parse(sys.argv[1:])
    logging.getLogger("vario").setLevel(logging.ERROR)
    if options.blocks is not None and options.blocks.is_file():
        blocks = [Block(**entry) for entry in json.loads(options.blocks.read_text(encoding="utf8"))]
    else:
        blocks = [
            block
            for loop in choose(options.half, file=options.file)
            for block in blocks_of(loop, folder(loop, options.watched, options.runs))
        ]
        if options.blocks is not None:
            options.blocks.write_text(json.dumps([asdict(block) for block in blocks]), encoding="utf8")
    found = calibrated(blocks, options.rate)
    print(table(found, blocks, options.rate))
    if options.save is not None:
        options.save.write_text(json.dumps(found, indent=1) + "\n", encoding="utf8")


def blocks_of(loop: Loop, path: Path) -> list[Block]:
    """Score a recorded loop; nothing, if it was not recorded."""
    if not (path / DONE).is_file():
        print(f"{loop.name}: not recorded", flush=True)
        return []
    run = vario.open_run(path)
    steps = list(rank_steps(run, 0, Memory(), Budget()))
    spoke: list[dict[str, float]] = [{} for _ in range(0, max(1, len(steps)), BLOCK)]
    rules = list(OPTIONS)
    for factor in FACTORS:
        found = _alerts(steps, [Chosen(RULES.get(name), _options(name, factor)) for name in rules])
        rules = sorted({rule for rule, _ in found})
        for rule, at in found:
            spoke[at // BLOCK][rule] = factor
        if not rules:
            break
    series = {quantity: len({name for step in steps for frame in step.frames if frame.quantity == quantity
                             for name in frame.targets}) for quantity in sorted(set(SEEN.values()))}  # fmt: skip
    return [
        Block(loop.name, loop.recipe.__name__, _lived(number, len(steps)), series, scores)
        for number, scores in enumerate(spoke)
    ]


def _lived(number: int, steps: int) -> int:
    """The steps of a block in which rules compare."""
    return max(1, min(steps, (number + 1) * BLOCK) - max(number * BLOCK, WARMING))


def _options(rule: str, factor: float) -> dict[str, float]:
    return {OPTIONS[rule]: factor * RULES.get(rule).options[OPTIONS[rule]]}


def _alerts(steps: Sequence[Step], chosen: Sequence[Chosen]) -> list[tuple[str, int]]:
    """The rule and the place in the run of each alert."""
    memory, detector = Memory(), Detector(chosen)
    return [
        (alert.rule, at)
        for at, one in enumerate(steps)
        for alert in detector.see(Step(one.number, one.time, one.scalars, one.frames, one.facts, memory), None)
    ]


def calibrated(blocks: Sequence[Block], rate: float) -> dict[str, dict[str, float | str | None]]:
    """For each rule: the threshold for a rate, how often today's is passed, and what both were fitted on."""
    steps = [block.steps for block in blocks]
    found: dict[str, dict[str, float | str | None]] = {}
    for rule, option in OPTIONS.items():
        today = RULES.get(rule).options[option]
        scores = [block.scores.get(rule, 0.0) for block in blocks]
        grid = list(FACTORS)
        tail = tails.fit(scores, grid, sum(steps))
        power = chance = 0.0
        if tail is not None and rule in SEEN:
            passed = [int(score >= tail.start) for score in scores]
            power, chance = tails.growth(passed, steps, [block.series[SEEN[rule]] for block in blocks])
        safe = tails.conformal(scores, steps, rate)
        found[rule] = {
            "option": option,
            "today": today,
            "passed": sum(score >= 1 for score in scores),
            "fitted_rate": None if tail is None else round(tail.rate_at(max(1.0, tail.start)), 4),
            "threshold": None if tail is None else round(today * tail.threshold_for(rate), 3),
            "conformal": None if safe is None else round(today * safe, 3),
            "start": None if tail is None else round(today * tail.start, 3),
            "num": 0 if tail is None else tail.num,
            "scale": None if tail is None else round(today * tail.scale, 3),
            "shape": None if tail is None else round(tail.shape, 2),
            "growth": round(power, 2),
            "growth_gain": round(chance, 2),
        }
    return found


def table(found: Mapping[str, Mapping[str, object]], blocks: Sequence[Block], rate: float) -> str:
    """The calibration as text."""
    steps = sum(block.steps for block in blocks)
    lines = [f"{len({block.loop for block in blocks})} loops, {steps} steps, {len(blocks)} blocks;"
             f" wanted: {rate:g} per 1,000 steps and rule"]  # fmt: skip
    names = list(next(iter(found.values())))
    lines.append(f"{'rule':20} " + " ".join(f"{name:>11}" for name in names))
    lines += [f"{rule:20} " + " ".join(f"{entry[name]!s:>11}" for name in names) for rule, entry in found.items()]
    return "\n".join(lines)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Find the thresholds of rules on healthy loops.")
    parser.add_argument("--half", choices=("tune", "held-out", "both"), default="both", help="which loops")
    parser.add_argument("--file", default="*", help="only of files of recipes that match this: 'fifth_*'")
    parser.add_argument("--watched", choices=list(WATCHED), default="no-budget", help="how loops were watched")
    parser.add_argument("--rate", type=float, default=0.02, help="alerts per 1,000 steps that each rule may raise")
    parser.add_argument("--blocks", type=Path, help="keep the scores here, or read them from here if they are there")
    parser.add_argument("--save", type=Path, help="write the calibration here")
    parser.add_argument("--runs", type=Path, default=RUNS, help="where runs are kept")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
