"""Training status: `summarise_progress` finds the numbers, `progress_text` turns them into text."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vario.logs.history import GRADIENT_NORM, LOSS, RATE, Best, Curve, History, Note, Steps
from vario.logs.names import is_evaluation
from vario.reports.trend import Trend, find_trend

RECENT_INTERVALS = 20
"""The pace is the median over this many intervals."""
TIMINGS = ("_runtime", "_per_second", "_time")
"""Name suffixes of evaluation timings, which are not results."""
GREATER_IS_BETTER = ("accuracy", "accuracies", "f1", "bleu", "rouge", "auc", "precision", "recall", "reward", "margins")


@dataclass(frozen=True)
class Course:
    """A metric over the run; unreliable values are dropped, except the last one, in `last`."""

    last: float
    last_step: int
    first: float | None
    lowest: float | None
    lowest_step: int | None
    highest: float | None
    highest_step: int | None
    mean: float | None
    count: int


@dataclass(frozen=True)
class Break:
    """The run produced a NaN or Inf."""

    step: int
    """The step of the first row that shows it."""
    name: str
    value: float
    previous_step: int | None
    """The step of the last row before: it happened between the two."""
    num_rows: int
    is_lasting: bool
    """False if later rows are finite again, as after steps that a loss scaler skipped."""
    is_hidden: bool
    """Whether the loss of those rows is finite anyway: trainers may filter it."""


@dataclass(frozen=True)
class Speed:
    """The speed of the run."""

    seconds_per_step: float
    source: str
    num_intervals: int
    remaining_seconds: float | None
    """Time to the last step; None if finished, or if the last step is unknown."""


@dataclass(frozen=True)
class Evaluation:
    """One metric of an evaluation."""

    name: str
    last: float
    last_step: int
    best: float | None
    best_step: int | None


@dataclass(frozen=True)
class ProgressSummary:
    """The content of the progress report."""

    path: Path
    format: str
    step: int | None
    max_steps: int | None
    step_percent: float | None
    epoch: float | None
    num_epochs: float | None
    epoch_percent: float | None
    is_finished: bool | None
    loss: Course | None
    trend: Trend | None
    learning_rate: Course | None
    grad_norm: Course | None
    broken: Break | None
    zero_loss_since: int | None
    """The step since which the loss is exactly 0 without a gradient norm to confirm it: possibly a hidden NaN."""
    evaluation: list[Evaluation]
    best: Best | None
    others: Mapping[str, float]
    """The last values of all other metrics."""
    written: float | None
    age_seconds: float | None
    runtime_seconds: float | None
    speed: Speed | None
    notes: tuple[Note, ...]


@np.errstate(over="ignore", invalid="ignore")
def summarise_progress(history: History, now: float | None = None) -> ProgressSummary:
    """Compute the content of the report."""
    now = time.time() if now is None else now
    broken = find_break(history)
    loss = trusted_loss(history)
    names = [name for name in history.curves if is_evaluation(name) and not name.endswith(TIMINGS)]
    plain = {LOSS, RATE, GRADIENT_NORM}
    runtime = history.runtime_seconds
    return ProgressSummary(
        path=history.path,
        format=history.format,
        step=history.step,
        max_steps=history.max_steps,
        step_percent=_percent(history.step, history.max_steps),
        epoch=history.epoch,
        num_epochs=history.num_epochs,
        epoch_percent=_percent(history.epoch, history.num_epochs),
        is_finished=history.is_finished,
        loss=_course(history.loss, loss),
        trend=None if broken is not None and broken.is_lasting else find_trend(loss),
        learning_rate=_course(history.curves.get(RATE)),
        grad_norm=_course(history.curves.get(GRADIENT_NORM)),
        broken=broken,
        zero_loss_since=_zero_loss(history),
        evaluation=[_evaluation(name, history.curves[name]) for name in sorted(names, key=_losses_first)],
        best=history.best,
        others={
            name: float(curve.values[-1])
            for name, curve in history.curves.items()
            if name not in plain and not is_evaluation(name)
        },
        written=history.written,
        age_seconds=None if history.written is None else max(0.0, now - history.written),
        runtime_seconds=None if runtime is None or not np.isfinite(runtime) else runtime,
        speed=_speed(history),
        notes=history.notes,
    )


def find_break(history: History) -> Break | None:
    """Find the first row whose loss or gradient norm is not finite. A NaN norm counts whatever the loss is."""
    bad = bad_steps(history)
    if not len(bad):
        return None
    first = int(bad[0])
    curves = [history.curves[name] for name in (LOSS, GRADIENT_NORM) if name in history.curves]
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    earlier = steps[steps < first]
    name, value = next(
        (name, found)
        for name in (LOSS, GRADIENT_NORM)
        if (found := _at(history.curves.get(name), first)) is not None and not np.isfinite(found)
    )
    in_loss = _at(history.curves.get(LOSS), first)
    return Break(
        step=first,
        name=name,
        value=value,
        previous_step=int(earlier[-1]) if len(earlier) else None,
        num_rows=len(bad),
        is_lasting=bool(steps[-1] == bad[-1]),
        is_hidden=in_loss is not None and bool(np.isfinite(in_loss)),
    )


def trusted_loss(history: History) -> Curve:
    """Return the reliable losses: finite, in rows whose gradient norm is finite too."""
    loss = history.loss
    return loss.where(np.isfinite(loss.values) & ~np.isin(loss.steps, bad_steps(history)))


def shown_loss(history: History) -> Curve:
    """Return the loss to draw: NaN wherever it is unreliable."""
    loss = history.loss
    values = np.where(np.isin(loss.steps, bad_steps(history)) & np.isfinite(loss.values), np.nan, loss.values)
    return replace(loss, values=values)


def bad_steps(history: History) -> Steps:
    """Return the steps whose loss or gradient norm is not finite."""
    curves = [history.curves[name] for name in (LOSS, GRADIENT_NORM) if name in history.curves]
    bad = [curve.steps[~np.isfinite(curve.values)] for curve in curves]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *bad]))


def _at(curve: Curve | None, step: int) -> float | None:
    if curve is None:
        return None
    found = np.flatnonzero(curve.steps == step)
    return float(curve.values[found[-1]]) if len(found) else None


def _zero_loss(history: History) -> int | None:
    loss = history.loss
    if GRADIENT_NORM in history.curves or len(loss) < 2 or loss.values[-1] != 0:
        return None
    nonzero = np.flatnonzero(loss.values != 0)
    # Rewards and margins may be 0 from the start; a loss that was non-zero and is now exactly 0 is suspicious.
    return int(loss.steps[nonzero[-1] + 1]) if len(nonzero) else None


def _course(curve: Curve | None, trusted: Curve | None = None) -> Course | None:
    if curve is None or not len(curve):
        return None
    kept = curve.where(np.isfinite(curve.values)) if trusted is None else trusted
    low, high = (int(kept.values.argmin()), int(kept.values.argmax())) if len(kept) else (None, None)
    return Course(
        last=float(curve.values[-1]),
        last_step=int(curve.steps[-1]),
        first=float(kept.values[0]) if len(kept) else None,
        lowest=None if low is None else float(kept.values[low]),
        lowest_step=None if low is None else int(kept.steps[low]),
        highest=None if high is None else float(kept.values[high]),
        highest_step=None if high is None else int(kept.steps[high]),
        mean=float(kept.values.mean()) if len(kept) else None,
        count=len(curve),
    )


def _evaluation(name: str, curve: Curve) -> Evaluation:
    course = _course(curve)
    assert course is not None, "a curve has points"
    if any(word in name for word in GREATER_IS_BETTER):
        return Evaluation(name, course.last, course.last_step, course.highest, course.highest_step)
    if "loss" in name or "perplexity" in name:
        return Evaluation(name, course.last, course.last_step, course.lowest, course.lowest_step)
    return Evaluation(name, course.last, course.last_step, None, None)


def _losses_first(name: str) -> tuple[bool, str]:
    return "loss" not in name, name


def _percent(part: float | None, whole: float | None) -> float | None:
    if part is None or not whole or not np.isfinite([part, whole]).all():
        return None
    return 100 * part / whole


def _speed(history: History) -> Speed | None:
    pace = history.pace
    if pace is None:
        return None
    # Some logs round a short time to 0.
    measured = pace.seconds_per_step[(pace.seconds_per_step > 0) & np.isfinite(pace.seconds_per_step)]
    if not len(measured):
        return None
    recent = measured[-RECENT_INTERVALS:]
    seconds = float(np.median(recent))
    remaining = None
    if not history.is_finished and history.max_steps is not None and history.step is not None:
        remaining = max(0, history.max_steps - history.step) * seconds
    return Speed(seconds, pace.source, len(recent), remaining)
