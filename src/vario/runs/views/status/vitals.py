"""The most important numbers of a run: progress, speed and vital signs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from vario.core.machine_options import PREFIX
from vario.runs.reader import RunReader
from vario.runs.views.curves import Curve, read_curve
from vario.runs.views.status.losses import LossName, choose_losses

Values = npt.NDArray[np.float64]

SPARK_POINTS = 60
SPIKE_TIMES = 3.0
"""A value this many usual ranges from the middle is drawn as a spike."""
RECENT_STEPS = 50
"""The pace is the median over this many steps."""
MOST_VITALS = 12
TOTALS = ("total_steps", "max_steps")
"""Plain numbers with the total number of steps."""
NAMES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("learning rate", ("lr", "learning_rate", "train/learning_rate"), ""),
    ("gradient norm", ("grad_norm", "gradient_norm", "train/grad_norm"), ""),
    ("step", ("step_seconds",), "s"),
    ("waiting", ("wait_seconds",), "s"),
    ("tokens", ("tokens_per_second", "throughput/tokens_per_second"), "/s"),
    ("samples", ("samples_per_second", "train_samples_per_second"), "/s"),
    ("memory", ("device_memory_peak_bytes", "device_memory_peak_bytes/0", "process_memory_bytes"), "B"),
    ("overhead of vario", ("overhead",), "share"),
)
"""What is shown after the loss: label, possible names of the plain number, and unit."""
NOT_OWN = ("step_seconds", "process_memory_bytes", "overhead")
"""Plain numbers that vario adds itself."""
NO_RESULTS = ("_step", "_runtime", "_per_second", "_seconds")
"""Suffixes of evaluation numbers that are not results."""


@dataclass(frozen=True)
class Vital:
    """One number and its curve."""

    name: str
    target: str
    """The plain number it is read from."""
    value: float
    unit: str
    spark: tuple[float, ...]
    """The curve in few points, from the first step to the last; NaN where it was not a number."""
    is_found: bool = False
    """Whether it is a loss that vario found because the script logged none."""


@dataclass(frozen=True)
class Pace:
    """Progress and speed of a run; None if unknown."""

    step: int | None
    total_steps: int | None
    progress: float | None
    """From 0 to 1."""
    steps_per_second: float | None
    """Steps over time; `eta_seconds` follows the last steps instead."""
    eta_seconds: float | None


@dataclass(frozen=True)
class Vitals:
    """The content at the top of a run's page."""

    pace: Pace
    vitals: tuple[Vital, ...]

    @property
    def loss(self) -> Vital | None:
        """The most important vital sign."""
        return next((found for found in self.vitals if found.name == "loss"), None)


def read_vitals(run: RunReader, most: int = MOST_VITALS, first: int | None = None) -> Vitals:
    """Read progress and vital signs of a run: the loss first, then other known numbers and evaluations.

    With a first step, only newer numbers are read, and a vital sign without any is omitted.
    """
    ranks = run.ranks
    rank = ranks[0] if ranks else 0
    if not ranks or "scalar" not in run.quantities(rank):
        return Vitals(Pace(run.last_step, None, None, None, None), ())
    targets = run.targets("scalar", rank=rank)
    losses = choose_losses(targets, lambda target: len(_curve(run, target, rank).steps))
    read = [
        (vital_name(at, loss), "", loss.is_found, _curve(run, loss.target, loss.ranks_to_read(ranks), first))
        for at, loss in enumerate(losses[:most])
    ]
    others = chosen_names(targets)
    if run.quantities(rank) == ["scalar"]:
        others = [*_own_names(targets, [*(loss.target for loss in losses), *(name for _, name, _ in others)]), *others]
    others = others[: most - len(read)]
    read += [(name, unit, False, _curve(run, target, rank, first)) for name, target, unit in others]
    vitals = tuple(
        Vital(name, curve.target, float(curve.last[-1]), unit, spark(curve), is_found)
        for name, unit, is_found, curve in read
        if len(curve.steps)
    )
    return Vitals(read_pace(run, targets, rank, read[0][3] if losses else None), vitals)


def vital_name(at: int, loss: LossName) -> str:
    """Return the label of a loss: the first is the loss, others belong to parts."""
    return f"loss {loss.part}" if at else "loss"


def read_pace(run: RunReader, targets: Sequence[str], rank: int, clock: Curve | None = None) -> Pace:
    """Read the progress of a run, from the total number of steps if logged, and the last step times."""
    noted = [content.get("last_step") for content in run.rank_contents]
    known = [int(step) for step in noted if step is not None]
    if clock is None or not len(clock.steps):
        name = "step_seconds" if "step_seconds" in targets else next(iter(targets), None)
        clock = None if name is None else _curve(run, name, rank)
    if clock is not None:
        known += [int(step) for step in clock.steps[-1:]]
    step = max(known, default=None)
    total = next((_last(run, name, rank) for name in TOTALS if name in targets), None)
    seconds = None if step is None or clock is None else _step_seconds(run, targets, rank, step, clock.target)
    return make_pace(step, total, seconds, run.state == "running", read_speed(run, rank))


def read_speed(run: RunReader, rank: int) -> float | None:
    """Read the steps per second of a rank."""
    steps = run.steps("scalar", rank)
    return speed(steps, run.reader(rank, "scalar").times(run.sessions, steps), run.sessions)


def speed(steps: npt.NDArray[np.int64], times: Values, sessions: Sequence[Mapping[str, Any]]) -> float | None:
    """Steps over time, from the first recorded step to the last, without the pauses between sessions.

    `times` are when the steps, in order, ended.
    """
    known = np.isfinite(times)
    steps, times = steps[known], times[known]
    starts = np.searchsorted(steps, [session["first_step"] for session in sessions[1:]])
    num_steps, seconds = 0, 0.0
    for begin, end in pairwise([0, *starts.tolist(), len(steps)]):
        if end - begin > 1:
            num_steps += int(steps[end - 1] - steps[begin])
            seconds += float(times[end - 1] - times[begin])
    return num_steps / seconds if num_steps and seconds > 0 else None


def make_pace(
    step: int | None,
    total: float | None,
    seconds: float | None,
    is_running: bool,
    steps_per_second: float | None = None,
) -> Pace:
    """Compute the progress from the newest step, the total number of steps, and the time per step."""
    total_steps = int(total) if total is not None and np.isfinite(total) and total >= 1 else None
    progress = None if step is None or total_steps is None else min(1.0, (step + 1) / total_steps)
    eta = None
    if seconds is not None and step is not None and total_steps is not None and is_running:
        # Beyond the announced end the remaining time is unknown.
        eta = (total_steps - step - 1) * seconds if step < total_steps else None
    return Pace(step, total_steps, progress, steps_per_second, eta)


def median_seconds(seconds: Values) -> float | None:
    """Return the time per step: the median of the last ones."""
    recent = seconds[-RECENT_STEPS:]
    measured = recent[np.isfinite(recent) & (recent > 0)]
    return float(np.median(measured)) if len(measured) else None


def spark(curve: Curve) -> tuple[float, ...]:
    """A curve in few points: the middle of each bucket, or its end where a spike sticks out; NaN stays NaN."""
    return _spark(curve.low, curve.high, curve.bad)


def spark_of(values: Values) -> tuple[float, ...]:
    """`spark` for a series."""
    return _spark(values, values, ~np.isfinite(values))


def _spark(low: Values, high: Values, bad: npt.NDArray[np.bool_]) -> tuple[float, ...]:
    if not len(low):
        return ()
    buckets = min(SPARK_POINTS, len(low))
    starts = np.arange(buckets) * len(low) // buckets
    with np.errstate(all="ignore"):
        lowest, highest = np.fmin.reduceat(low, starts), np.fmax.reduceat(high, starts)
        middle = (np.add.reduceat(low, starts) + np.add.reduceat(high, starts)) / 2
        middle /= np.diff(np.append(starts, len(low)))
        heights = highest - lowest
        known = heights[~np.isnan(heights)]
        usual = np.median(known) if np.isfinite(known).any() else 0.0
        values = np.where(highest - middle > SPIKE_TIMES * usual, highest, middle)
        values = np.where(middle - lowest > SPIKE_TIMES * usual, lowest, values)
    return tuple(np.where(np.logical_or.reduceat(bad, starts), np.nan, values).tolist())


def chosen_names(targets: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return label, plain number and unit of each recorded vital sign, without the loss."""
    found = []
    for name, candidates, unit in NAMES:
        known = [target for target in candidates if target in targets]
        if name == "memory" and not known:
            known = [target for target in targets if target.startswith("device_memory_peak_bytes")]
        if known:
            found.append((name, known[0], unit))
    evaluations = [
        target for target in targets if target.startswith(("eval", "val", "test")) and not target.endswith(NO_RESULTS)
    ]
    return found + [(target, target, "") for target in evaluations]


def _own_names(targets: Sequence[str], shown: Sequence[str]) -> list[tuple[str, str, str]]:
    """Where there is no model, what the script logs is what it is about."""
    left = (target for target in targets if target not in (*shown, *TOTALS, *NOT_OWN))
    return [(target, target, "") for target in left if not target.startswith(PREFIX)]


def _curve(run: RunReader, target: str, rank: int | str, first: int | None = None) -> Curve:
    return read_curve(run, target, "scalar", "value", rank, first, points=SPARK_POINTS * 4)


def _last(run: RunReader, target: str, rank: int) -> float | None:
    curve = _curve(run, target, rank)
    return float(curve.last[-1]) if len(curve.last) else None


def _step_seconds(run: RunReader, targets: Sequence[str], rank: int, step: int, clock: str) -> float | None:
    """Median time of the last steps: as recorded, or from the time between rows."""
    name = "step_seconds" if "step_seconds" in targets else clock
    recent = read_curve(run, name, "scalar", "value", rank, first=max(0, step - RECENT_STEPS), points=2 * RECENT_STEPS)
    if name == "step_seconds":
        return median_seconds(recent.last)
    with np.errstate(all="ignore"):
        return median_seconds(np.diff(recent.times) / np.diff(recent.steps))
