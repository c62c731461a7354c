"""Scores as text: per fault, per rule and overall."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from zoo.faults import all_faults
from zoo.score import FaultScore, HealthyScore


@dataclass(frozen=True)
class Overall:
    """One detector in one line. Shares are of the runs that have such a thing; None where there are none."""

    runs: int
    detect: float | None
    usable: float | None
    localise: float | None
    cause: float | None
    delay: float | None
    """Median steps from the fault to the first alert."""
    lead: float | None
    """Median steps from the first alert to the failure of the loss."""
    before_loss: float | None
    """Share of the failing runs with an alert before the failure."""
    false_incidents: float | None
    lines: float | None
    """Both per 1,000 healthy steps."""


def overall(faults: Sequence[FaultScore], healthy: Sequence[HealthyScore]) -> Overall:
    """Add up."""
    leads = [score.lead for score in faults if score.lead is not None]
    delays = [score.delay for score in faults if score.delay is not None]
    steps = sum(score.steps for score in healthy)
    return Overall(
        len(faults),
        share(score.is_detected for score in faults),
        share(score.is_usable for score in faults),
        share(score.is_right_place for score in faults if score.is_right_place is not None),
        share(score.is_right_cause for score in faults if score.is_right_cause is not None),
        statistics.median(delays) if delays else None,
        statistics.median(leads) if leads else None,
        share((score.lead or 0) > 0 for score in faults if score.failed is not None),
        1000 * sum(score.incidents for score in healthy) / steps if steps else None,
        1000 * sum(score.lines for score in healthy) / steps if steps else None,
    )


def share(found: Iterable[bool | None]) -> float | None:
    values = list(found)
    return sum(map(bool, values)) / len(values) if values else None


HEADINGS = ("runs", "detect", "usable", "localise", "cause", "delay", "lead", "before loss", "FA/1k", "lines/1k")


def overall_text(rows: dict[str, Overall]) -> str:
    """A table with a line per detector (or per rule)."""
    width = max([len(name) for name in rows] + [8])
    lines = [" ".join([" " * width, *(f"{heading:>11}" for heading in HEADINGS)])]
    for name, row in rows.items():
        cells = []
        for key, value in asdict(row).items():
            is_share = key in ("detect", "usable", "localise", "cause", "before_loss")
            digits = 2 if key in ("false_incidents", "lines") else 0 if key == "runs" else 1
            cells.append("-" if value is None else f"{value:.0%}" if is_share else f"{value:.{digits}f}")
        lines.append(" ".join([f"{name:{width}}", *(f"{cell:>11}" for cell in cells)]))
    return "\n".join(lines)


def faults_text(scores: Sequence[FaultScore]) -> str:
    """A line per fault: what was found of its seeds, and what the first diagnosis of each said."""
    lines = []
    for fault in all_faults():
        own = [score for score in scores if score.run.job.fault == fault]
        if not own:
            continue
        right = [score.is_right_place if score.is_right_cause is None else score.is_right_cause for score in own]
        found, usable = sum(score.is_detected for score in own), sum(score.is_usable for score in own)
        said = "; ".join(diagnosis_text(score) for score in own)
        lines.append(f"{fault:26} {found}/{len(own)} {usable}/{len(own)} {sum(map(bool, right))}/{len(own)}  {said}")
    return "\n".join(["fault                   found usable right  seed: diagnosis", *lines])


def diagnosis_text(score: FaultScore) -> str:
    seed, said = score.run.job.seed, score.diagnosis
    if said is None:
        return f"{seed}: missed"
    place = said.target or (", ".join(said.cause) or said.scope)
    rank = "" if said.rank is None else f" rank {said.rank}"
    mark = "" if (score.is_right_place or score.is_right_cause) else " (wrong)"
    return f"{seed}: {said.rule} {place}{rank} {score.delay:+d}{mark}"


def rules_text(faults: Sequence[FaultScore], healthy: Sequence[HealthyScore]) -> str:
    """A line per rule: the runs it diagnosed first, how many rightly, and its false incidents."""
    false = [incident.rule for score in healthy for incident in score.said]
    rules = sorted({score.diagnosis.rule for score in faults if score.diagnosis is not None} | set(false))
    lines = []
    for rule in rules:
        own = [score for score in faults if score.diagnosis is not None and score.diagnosis.rule == rule]
        right = sum(bool(score.is_right_place or score.is_right_cause) for score in own)
        lines.append(f"{rule:26} {len(own):6} {right:6} {false.count(rule):6}")
    return "\n".join(["rule                        first  right  false", *lines])
