"""What a run recorded around an incident, as clues for and against hypotheses; what was not recorded is no clue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vario.core.errors import VarioError
from vario.core.records import ROOT
from vario.core.text import number
from vario.rules.api.alerts import Incident
from vario.runs.reader import RunReader, Series

AFTER_RESUME = 20
"""Steps after a resume in which it may be the reason."""
BEFORE = 64
"""The looks before an incident that say what was usual."""
LEAST_KNOWN = 5
AS_BEFORE, CHANGED = 4.0, 8.0
"""Spreads from the usual within which a series is as before, and beyond which it has changed."""
RATE_FACTOR = 1.5


@dataclass(frozen=True)
class Clue:
    """Something that speaks for a hypothesis, or against it."""

    name: str
    weight: float
    """A logarithm of odds; negative: it speaks against it."""
    text: str


def clues_of_run(run: RunReader, incident: Incident) -> Iterator[Clue]:
    """Return what the records around an incident say."""
    yield from _resume(run, incident)
    yield from _rate(run, incident)
    yield from _input(run, incident)
    yield from _rows(run, incident)
    yield from _precision(run, incident)
    yield from _ranks(run, incident)
    yield from _place(run, incident)


def _resume(run: RunReader, incident: Incident) -> Iterator[Clue]:
    began = incident.lead.began
    starts = [int(session["first_step"]) for session in run.sessions[1:]]
    near = [start for start in starts if 0 <= began - start <= AFTER_RESUME]
    if near:
        yield Clue("resume", 3.0, f"training was resumed at step {near[-1]}")
    elif run.sessions:
        told = "was never resumed" if not starts else f"was not resumed in the {AFTER_RESUME} steps before"
        yield Clue("resume", -2.0, f"the run {told}")


def _rate(run: RunReader, incident: Incident) -> Iterator[Clue]:
    series = _series(run, "lr", "scalar", "value", incident)
    began = incident.lead.began
    if series is None:
        return
    around = series.values[(series.steps >= began - 2) & (series.steps <= incident.lead.step)]
    if not len(around) or not np.isfinite(around).all() or around.min() <= 0:
        return
    low, high = float(around.min()), float(around.max())
    if high > RATE_FACTOR * low:
        text = f"the learning rate changed from {number(float(around[0]))} to {number(float(around[-1]))}"
        yield Clue("schedule", 2.0, f"{text} around step {began}")
    elif incident.lead.rule not in ("update_high", "update_low"):
        yield Clue("schedule", -1.0, f"the learning rate did not jump: {number(high)} around step {began}")


def _input(run: RunReader, incident: Incident) -> Iterator[Clue]:
    for target in _targets(run, "activation", f"{ROOT}:input"):
        series = _series(run, target, "activation", "rms", incident)
        judged = None if series is None else _judged(series, incident)
        if judged is None:
            continue
        is_changed, text = judged
        where = f"the model's input ('{target}', RMS)"
        if is_changed:
            yield Clue("data", 2.5, f"{where} {text}")
        else:
            yield Clue("data", -1.0, f"{where} {text}")
            if incident.lead.target_is_loss:
                yield Clue("labels", 0.5, f"{where} {text}, but the loss is not")
        return


def _rows(run: RunReader, incident: Incident) -> Iterator[Clue]:
    series = _series(run, "batch_repeated", "scalar", "value", incident)
    if series is None or any(alert.target == "batch_repeated" for alert in incident.alerts):
        return
    around = series.values[(series.steps >= incident.lead.began - 1) & (series.steps <= incident.lead.step + 1)]
    if len(around) and float(np.nanmax(around)) == 0:
        yield Clue("data", -0.3, f"no row of the batches around step {incident.lead.began} had been seen before")


def _precision(run: RunReader, incident: Incident) -> Iterator[Clue]:
    rank = run.ranks[0] if incident.rank is None else incident.rank
    parameters = run.structure(rank)["parameters"]
    dtypes = {str(kind.get("dtype") or "").rpartition(".")[2] for kind in parameters}
    has_scaler = "skipped_step" in _targets(run, "scalar", "skipped_step")
    if not dtypes:
        return
    if dtypes <= {"float32", "float64"} and not has_scaler:
        yield Clue("precision", -1.0, "all parameters are float32 and there is no loss scaler")
    elif dtypes & {"float16", "bfloat16"} or has_scaler:
        which = ", ".join(sorted(dtypes & {"float16", "bfloat16"})) or "a loss scaler"
        yield Clue("precision", 0.5, f"the model trains with {which}")


def _ranks(run: RunReader, incident: Incident) -> Iterator[Clue]:
    if len(run.ranks) < 2:
        yield Clue("ranks", -10.0, "the run has one rank")
    elif incident.rank is not None:
        yield Clue("hardware", 1.5, f"only rank {incident.rank} of {len(run.ranks)} shows it")
        yield Clue("schedule", -2.0, f"only rank {incident.rank} shows it, and all ranks have the same schedule")
        if incident.lead.target == "wait_seconds":
            yield Clue("data", 4.0, f"rank {incident.rank} loses the time between steps, where it loads its data")
            yield Clue("hardware", -1.5, f"rank {incident.rank} does not lose it in forward or backward")


def _place(run: RunReader, incident: Incident) -> Iterator[Clue]:
    """Whether what goes into the module named was as before."""
    lead = incident.lead
    if lead.quantity != "activation" or incident.place in (None, ROOT):
        return
    for target in _targets(run, "activation", f"{incident.place}:input"):
        series = _series(run, target, "activation", "rms", incident)
        judged = None if series is None else _judged(series, incident)
        if judged is not None:
            is_changed, text = judged
            yield Clue("module", -1.5 if is_changed else 1.5, f"the input of '{incident.place}' (RMS) {text}")
            return


def _judged(series: Series, incident: Incident) -> tuple[bool, str] | None:
    """Whether a series changed at an incident, and the words for it; None if nobody looked, or it is not clear."""
    began, last = incident.lead.began, incident.lead.step
    before = series.values[series.steps < began][-BEFORE:]
    before = before[np.isfinite(before)]
    at = (series.steps >= began) & (series.steps <= last)
    if len(before) < LEAST_KNOWN or not at.any():
        return None
    values = series.values[at]
    middle = float(np.median(before))
    spread = max(1.4826 * float(np.median(np.abs(before - middle))), 0.02 * abs(middle), 1e-30)
    usual = f"{number(float(before.min()))} to {number(float(before.max()))} before"
    if not np.isfinite(values).all():
        return True, f"was not finite at step {int(series.steps[at][~np.isfinite(values)][0])}, {usual}"
    worst = int(np.argmax(np.abs(values - middle)))
    off, when = abs(float(values[worst]) - middle) / spread, int(series.steps[at][worst])
    if off > CHANGED:
        return True, f"was {number(float(values[worst]))} at step {when}, {usual}"
    return (
        (False, f"was as before at step {when}: {number(float(values[worst]))}, {usual}") if off < AS_BEFORE else None
    )


def _targets(run: RunReader, quantity: str, opening: str) -> list[str]:
    if not run.ranks or quantity not in run.quantities("all"):
        return []
    return [name for name in run.targets(quantity) if name.startswith(opening)]


def _series(run: RunReader, target: str, quantity: str, statistic: str, incident: Incident) -> Series | None:
    """One series, of the rank an incident names; None if it was not recorded."""
    if target not in _targets(run, quantity, target):
        return None
    try:
        return run.series(target, quantity, statistic, "all" if incident.rank is None else incident.rank)
    except VarioError:
        return None
