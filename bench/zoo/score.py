"""How good a detector is: found, usable, right place, right cause, how early, and how often for nothing.

A detector is a function from a run's folder to incidents. It sees the folder alone; truths and twins stay here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

import vario
from zoo.record import Recorded
from zoo.truth import Truth

GAP = 10
"""Quiet steps that end an incident."""
REACH, AFTER_FAILURE, SILENCE = 60, 20, 50
Losses = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """One alert."""

    step: int
    rule: str
    target: str | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Incident:
    """What a detector says once about one thing that happened: its diagnosis, and the alerts it is made of."""

    step: int
    rule: str
    target: str | None = None
    rank: int | None = None
    scope: str = "tensor"
    cause: tuple[str, ...] = ()
    lines: tuple[Line, ...] = ()


Detector = Callable[[Path], Sequence[Incident]]


@dataclass(frozen=True)
class FaultScore:
    """How a detector fared on one fault run."""

    run: Recorded
    truth: Truth
    failed: int | None
    """The step at which the loss had left the twin's."""
    first: int | None = None
    """The step of the first alert that counts."""
    is_usable: bool = False
    is_right_place: bool | None = None
    """None where there is no one culprit."""
    is_right_cause: bool | None = None
    """None where the culprit is a place."""
    diagnosis: Incident | None = None

    @property
    def is_detected(self) -> bool:
        return self.first is not None

    @property
    def delay(self) -> int | None:
        return None if self.first is None else self.first - self.truth.t0

    @property
    def lead(self) -> int | None:
        return None if self.first is None or self.failed is None else self.failed - self.first


@dataclass(frozen=True)
class HealthyScore:
    """What a detector said where there was nothing to say."""

    run: Recorded
    steps: int
    incidents: int
    lines: int
    said: tuple[Incident, ...] = field(repr=False, default=())


def incidents_of(lines: Sequence[Line]) -> list[Incident]:
    """Alerts as incidents: what comes within ten steps belongs together, the first one is the diagnosis."""
    found: list[list[Line]] = []
    for line in sorted(lines, key=lambda line: line.step):
        if not found or line.step - found[-1][-1].step > GAP:
            found.append([])
        found[-1].append(line)
    return [
        Incident(group[0].step, group[0].rule, group[0].target, group[0].rank, lines=tuple(group)) for group in found
    ]


def all_lines(incidents: Sequence[Incident]) -> list[Line]:
    """Every alert; an incident that lists none is one itself."""
    return [
        line
        for incident in incidents
        for line in incident.lines or (Line(incident.step, incident.rule, incident.target, incident.rank),)
    ]


def score_fault(detector: Detector, run: Recorded) -> FaultScore:
    """Score one fault run beside its twin."""
    assert run.truth is not None
    assert run.twin is not None
    truth = run.truth
    failed = failure_step(losses_of(run.path), losses_of(run.twin), truth.t0)
    last = max(truth.t0 + REACH, -1 if failed is None else failed + AFTER_FAILURE)
    incidents, twin_lines = detector(run.path), all_lines(detector(run.twin))
    raised: dict[tuple[str, str | None, int | None], set[int]] = {}
    for line in twin_lines:
        near = range(line.step - GAP, line.step + GAP + 1)
        raised.setdefault((line.rule, line.target, line.rank), set()).update(near)

    def is_new(line: Line) -> bool:
        said = raised.get((line.rule, line.target, line.rank), ())
        return truth.t0 - 1 <= line.step <= last and line.step not in said

    candidates = [(line, incident) for incident in incidents for line in filter(is_new, all_lines([incident]))]
    if not candidates:
        place, cause = (False, None) if truth.has_place else (None, False)
        return FaultScore(run, truth, failed, is_right_place=place, is_right_cause=cause)
    line, incident = min(candidates, key=lambda found: found[0].step)
    if incident.step < truth.t0 - 1:
        # An alarm that was on before: what it said then was about something else.
        incident = Incident(line.step, line.rule, line.target, line.rank, incident.scope, incident.cause)
    noise = any(truth.t0 - SILENCE <= other.step <= line.step for other in twin_lines)
    return FaultScore(
        run,
        truth,
        failed,
        line.step,
        not noise,
        names_place(incident, truth) if truth.has_place else None,
        None if truth.has_place else names_cause(incident, truth),
        replace(incident, lines=()),
    )


def score_healthy(detector: Detector, run: Recorded) -> HealthyScore:
    """Count what a detector says of a healthy run."""
    said = tuple(detector(run.path))
    lines = all_lines(said)
    plain = tuple(replace(incident, lines=()) for incident in said)
    return HealthyScore(run, len(losses_of(run.path)), len(incidents_of(lines)), len(lines), plain)


def names_place(incident: Incident, truth: Truth) -> bool:
    """Whether a diagnosis names the culprit: its module, and its rank if it has one."""
    if truth.rank is not None and incident.rank not in (truth.rank, *truth.also_ranks):
        return False
    if truth.site is None:
        return True
    if incident.target is None:
        return False
    target = incident.target.split(":")[0]
    return any(is_same_place(target, site) for site in (truth.site, *truth.also))


def is_same_place(target: str, site: str) -> bool:
    """Whether one name is inside the other; the list that holds all layers is no place."""
    inner, outer = (target, site) if len(target) >= len(site) else (site, target)
    if inner == outer:
        return True
    if not outer or not inner.startswith(outer + "."):
        return False
    return not inner[len(outer) + 1 :].split(".")[0].isdigit()


def names_cause(incident: Incident, truth: Truth) -> bool:
    """Whether a diagnosis says what kind of thing went wrong, instead of blaming a tensor."""
    if incident.scope not in ("global", "data"):
        return False
    if not incident.cause:
        return incident.scope == truth.scope
    said = " ".join(incident.cause).lower()
    return any(word in said for word in truth.words)


@lru_cache(maxsize=4096)
def losses_of(path: Path) -> Losses:
    """The loss of each step, over all ranks."""
    return np.asarray(vario.open_run(path).series("loss", "scalar").values, np.float64)


def failure_step(losses: Losses, twin: Losses, t0: int) -> int | None:
    """The first step at which the mean loss of five steps is clearly above the twin's."""
    length = min(len(losses), len(twin))
    mean, usual = _mean_of_5(losses[:length]), _mean_of_5(twin[:length])
    smooth = np.convolve(np.pad(usual, 20, mode="edge"), np.full(41, 1 / 41), mode="valid")
    limit = max(0.1, 4 * float(np.std(usual - smooth)))
    above = ~(mean - usual <= limit)
    above[:t0] = False
    return int(above.argmax()) if above.any() else None


def _mean_of_5(losses: Losses) -> Losses:
    padded = np.concatenate([np.full(4, losses[0]), losses])
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, 5).mean(1), np.float64)
