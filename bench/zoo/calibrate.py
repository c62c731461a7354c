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
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

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

UNITS: Mapping[str, Mapping[str, float]] = {
    "grad_spike": {"threshold": 8.0},
    "activation_jump": {"threshold": 8.0},
    "update_jump": {"threshold": 6.0},
    "level_shift": {"threshold": 10.0},
    "gradient_scale": {"threshold": 6.0},
    "stale_second_moment": {"threshold": 8.0},
    "grad_underflow": {"threshold": 6.0},
    "attn_entropy": {"threshold": 6.0},
    "attn_logit": {"threshold": 8.0},
    "validation_shift": {"threshold": 8.0},
    "loss_shift": {"threshold": 7.0},
    "loss_swings": {"times": 3.0},
    "expert_imbalance": {"times": 2.5},
    "drift": {"activation": 2.0, "weight": 1.4, "gradient": 4.0, "update": 3.0},
}
"""The options of each rule that say what is no chance, and the unit of its scores: not its defaults, which follow."""
POWERS = ("drift",)
"""Rules whose options are factors, which are scaled together, as powers."""
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
FACTORS = tuple(1.15 ** (power - 10) for power in range(30))
"""The thresholds that are tried, as parts or multiples of the unit."""
ENOUGH = 10
"""With fewer scores than this nothing is said of a tail, and the threshold stays."""
Entry = dict[str, Any]
SEE_EACH_STEP = ("grad_spike", "loss_shift", "loss_swings")
"""Rules about what is watched in each step unless the budget forbids."""
CERTAIN = 1.92
"""The gain in likelihood at which the number of series has an effect, at 95 %."""
GROWING = ("grad_spike", "level_shift")
"""Rules whose threshold grows with the number of series, by their option `growth`."""
RATES = {"drift": 0.07}
"""Rules with a rate of their own: at a lower one, drift would not see that a tensor grows by 3 % each step."""
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
    """The highest threshold at which a rule spoke, in its unit; rules that never did are missing."""


def main() -> None:
    options = parse(sys.argv[1:])
    logging.getLogger("vario").setLevel(logging.ERROR)
    blocks: list[Block] = []
    if options.blocks is not None and options.blocks.is_file():
        blocks = [Block(**entry) for entry in json.loads(options.blocks.read_text(encoding="utf8"))]
    if not blocks or options.rule:
        scored = [
            block
            for loop in choose(options.half, file=options.file)
            for block in blocks_of(
                loop,
                [folder(loop, watched, options.runs) for watched in options.watched],
                options.rule or list(UNITS),
            )
        ]
        blocks = merged(blocks, scored, options.rule)
        if options.blocks is not None:
            options.blocks.write_text(json.dumps([asdict(block) for block in blocks]), encoding="utf8")
    found = calibrated(blocks, options.rate)
    print(table(found, blocks, options.rate))
    for quantity in sorted(set(SEEN.values())):
        print(f"series of {quantity}: {usual_series(blocks, quantity):.0f}, a geometric mean")
    if options.save is not None:
        loops, steps = len({block.loop for block in blocks}), sum(block.steps for block in blocks)
        content = {"loops": loops, "steps": steps, "rate": options.rate, "rules": found}
        options.save.write_text(json.dumps(content, indent=1) + "\n", encoding="utf8")


def merged(before: Sequence[Block], now: Sequence[Block], rules: Sequence[str]) -> list[Block]:
    """Blocks with new scores of these rules, and their old scores of the others."""
    old: dict[str, list[Block]] = {}
    for block in before:
        old.setdefault(block.loop, []).append(block)
    found = []
    for block in now:
        kept = old[block.loop].pop(0).scores if old.get(block.loop) else {}
        others = {rule: score for rule, score in kept.items() if rule not in rules}
        found.append(replace(block, scores={**others, **block.scores}))
    return found


def blocks_of(loop: Loop, paths: Sequence[Path], chosen: Sequence[str]) -> list[Block]:
    """Score the first of these recordings of a loop that is there; nothing, if none is."""
    path = next((path for path in paths if (path / DONE).is_file()), None)
    if path is None:
        print(f"{loop.name}: not recorded", flush=True)
        return []
    run = vario.open_run(path)
    steps = list(rank_steps(run, 0, Memory(), Budget()))
    spoke: list[dict[str, float]] = [{} for _ in range(0, max(1, len(steps)), BLOCK)]
    rules = list(chosen)
    for factor in FACTORS:
        found = _alerts(steps, [Chosen(RULES.get(name), options_at(name, factor)) for name in rules])
        for rule, at in found:
            spoke[at // BLOCK][rule] = factor
        # What is off at a low factor may never have been calm, so these rules may speak at a higher one only.
        rules = sorted({rule for rule, _ in found} | (set(POWERS) & set(chosen) if factor < 1 else set()))
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


def options_at(rule: str, factor: float) -> dict[str, float]:
    """The options of a rule at a score."""
    unit = UNITS[rule]
    return {option: value**factor if rule in POWERS else factor * value for option, value in unit.items()}


def factor_now(rule: str) -> float:
    """Today's options as a score."""
    option, unit = next(iter(UNITS[rule].items()))
    today = RULES.get(rule).options[option]
    return math.log(today) / math.log(unit) if rule in POWERS else today / unit


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")


def _alerts(steps: Sequence[Step], chosen: Sequence[Chosen]) -> list[tuple[str, int]]:
    """The rule and the place in the run of each alert."""
    memory, detector = Memory(), Detector(chosen)
    return [
        (alert.rule, at)
        for at, one in enumerate(steps)
        for alert in detector.see(Step(one.number, one.time, one.scalars, one.frames, one.facts, memory), None)
    ]


def calibrated(blocks: Sequence[Block], rate: float) -> dict[str, Entry]:
    """For each rule: the options for a rate, how often today's are passed, and what both were fitted on."""
    steps = [block.steps for block in blocks]
    found: dict[str, Entry] = {}
    for rule in UNITS:
        scores = [block.scores.get(rule, 0.0) for block in blocks]
        tail = tails.fit(scores, FACTORS, sum(steps))
        passed = sum(score >= factor_now(rule) for score in scores)
        entry: Entry = {
            "passed": passed,
            "scores": sum(score > 0 for score in scores),
            "at_most": round(tails.upper_rate(passed, sum(steps)), 4),
        }
        if tail is not None and tail.num >= ENOUGH:
            wanted = RATES.get(rule, rate)
            factor, safe = tail.threshold_for(wanted), tails.conformal(scores, steps, wanted)
            entry |= {
                "rate": wanted,
                "options": {name: _rounded(value) for name, value in options_at(rule, factor).items()},
                "factor": round(factor, 3),
                "conformal_factor": None if safe is None else round(safe, 3),
                "fitted_rate": round(tail.rate_at(factor_now(rule)), 4),
                "start": round(tail.start, 3),
                "scale": round(tail.scale, 3),
                "shape": round(tail.shape, 2),
            }
            if rule in SEEN:
                series = [block.series[SEEN[rule]] for block in blocks]
                power, gain = tails.growth([int(score >= tail.start) for score in scores], steps, series)
                entry |= {"power": round(power, 2), "gain": round(gain, 2)}
                if rule in GROWING and gain > CERTAIN:
                    # The threshold of a model with more series, to first order in the logarithm of their number.
                    slope = power * tail.slope_at(max(factor, tail.start))
                    entry["options"]["growth"] = _rounded(slope * UNITS[rule]["threshold"])
        entry["defaults"] = {name: RULES.get(rule).options[name] for name in defaults_of(rule)}
        # What is watched in one step of ten would speak more often in each: a threshold is only raised there.
        is_free = entry.get("factor", 0.0) > factor_now(rule) or rule in SEE_EACH_STEP
        fitted = entry.get("options", {})
        entry["defaults"] |= {name: value for name, value in fitted.items() if is_free or name == "growth"}
        entry["fitted"] = [name for name in UNITS[rule] if is_free]
        found[rule] = entry
    return found


def defaults_of(rule: str) -> tuple[str, ...]:
    """The options of a rule that follow from a calibration."""
    return (*options_at(rule, 1.0), *(("growth",) if rule in GROWING else ()))


def usual_series(blocks: Sequence[Block], quantity: str) -> float:
    """How many series of a quantity a loop has, each step counting alike."""
    logs = [math.log(max(1, block.series[quantity])) * block.steps for block in blocks]
    return math.exp(sum(logs) / sum(block.steps for block in blocks))


def table(found: Mapping[str, Entry], blocks: Sequence[Block], rate: float) -> str:
    """The calibration as text."""
    steps = sum(block.steps for block in blocks)
    lines = [
        f"{len({block.loop for block in blocks})} loops, {steps} steps in which rules compare, {len(blocks)} blocks; "
        f"wanted: one alert of each rule in {1000 / rate:,.0f} steps",
        "factor: in units of scores; power: of the number of series, with which alerts grow; * another default",
        f"{'rule':20} {'passed':>6} {'scores':>6} {'at most':>8} {'fitted':>8} {'factor':>7} {'conformal':>9}"
        f" {'scale':>6} {'shape':>5} {'power':>6} {'gain':>5}  options",
    ]
    for rule, entry in found.items():
        shown = [entry.get(name, "") for name in ("fitted_rate", "factor", "conformal_factor", "scale", "shape")]
        shown += [entry.get("power", ""), entry.get("gain", "")]
        numbers = " ".join(f"{value!s:>{width}}" for value, width in zip(shown, (8, 7, 9, 6, 5, 6, 5), strict=True))
        now = {name: RULES.get(rule).options[name] for name in defaults_of(rule)}
        change = f"{now} -> {entry['defaults']} *" if entry["defaults"] != now else f"{now}"
        lines.append(f"{rule:20} {entry['passed']:6} {entry['scores']:6} {entry['at_most']:8} {numbers}  {change}")
    return "\n".join(lines)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Find the thresholds of rules on healthy loops.")
    parser.add_argument("--half", choices=("tune", "held-out", "both"), default="both", help="which loops")
    parser.add_argument("--file", default="*", help="only of files of recipes that match this: 'fifth_*'")
    parser.add_argument("--watched", nargs="+", choices=list(WATCHED), default=["no-budget", "default"],
                        help="how loops were watched: the first that was recorded")  # fmt: skip
    parser.add_argument("--rule", action="append", default=[], choices=list(UNITS), help="score only this one again")
    parser.add_argument("--rate", type=float, default=0.05, help="alerts per 1,000 steps that each rule may raise")
    parser.add_argument("--blocks", type=Path, help="keep the scores here, or read them from here if they are there")
    parser.add_argument("--save", type=Path, help="write the calibration here")
    parser.add_argument("--runs", type=Path, default=RUNS, help="where runs are kept")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
