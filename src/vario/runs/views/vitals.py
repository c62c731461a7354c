"""The few numbers one looks at first: how far a run is, how fast it goes, and its vital signs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vario.runs.reader import RunReader
from vario.runs.views.curves import Curve, read_curve
from vario.runs.views.loss_names import LossName, choose_losses

Values = npt.NDArray[np.float64]

SPARK_POINTS = 60
SPIKE_TIMES = 3.0
"""What sticks out of the middle by so many usual ranges is drawn as it is."""
RECENT_STEPS = 50
"""The pace is the median of so many steps."""
MOST_VITALS = 12
TOTALS = ("total_steps", "max_steps")
"""Plain numbers that tell how many steps a run is going to have."""
NAMES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("learning rate", ("lr", "learning_rate", "train/learning_rate"), ""),
    ("gradient norm", ("grad_norm", "gradient_norm", "train/grad_norm"), ""),
    ("step", ("step_seconds",), "s"),
    ("waiting", ("wait_seconds",), "s"),
    ("tokens", ("tokens_per_second", "throughput/tokens_per_second"), "/s"),
    ("samples", ("samples_per_second", "train_samples_per_second"), "/s"),
    ("memory", ("device_memory_peak_bytes", "device_memory_peak_bytes/0", "process_memory_bytes"), "B"),
)
"""What is shown after the loss, the plain numbers it may be called, and its unit."""
NO_RESULTS = ("_step", "_runtime", "_per_second")
"""Endings of what trainers report of an evaluation beside its results."""


@dataclass(frozen=True)
class Vital:
    """One number and its course."""

    name: str
    target: str
    """The plain number behind it."""
    value: float
    unit: str
    spark: tuple[float, ...]
    """The course in few points, from the first step to the last; NaN where it was not a number."""
    is_found: bool = False
    """Whether it is a loss that vario found, and nobody logged."""


@dataclass(frozen=True)
class Pace:
    """How far a run is and how fast it goes; None where nobody knows."""

    step: int | None
    total_steps: int | None
    progress: float | None
    """From 0 to 1."""
    steps_per_second: float | None
    eta_seconds: float | None


@dataclass(frozen=True)
class Vitals:
    """What stands at the top of a run's page."""

    pace: Pace
    vitals: tuple[Vital, ...]

    @property
    def loss(self) -> Vital | None:
        """The vital sign of all."""
        return next((found for found in self.vitals if found.name == "loss"), None)


def read_vitals(run: RunReader, most: int = MOST_VITALS, first: int | None = None) -> Vitals:
    """Read how far a run is and its vital signs, the loss first; of its other numbers, evaluations.

    From a step on, where only the newest numbers matter: then a vital sign that has none since is left out.
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
    others = chosen_names(targets)[: most - len(read)]
    read += [(name, unit, False, _curve(run, target, rank, first)) for name, target, unit in others]
    vitals = tuple(
        Vital(name, curve.target, float(curve.last[-1]), unit, spark(curve), is_found)
        for name, unit, is_found, curve in read
        if len(curve.steps)
    )
    return Vitals(read_pace(run, targets, rank, read[0][3] if losses else None), vitals)


def vital_name(at: int, loss: LossName) -> str:
    """What a loss is called: the first is the loss, others are those of parts."""
    return f"loss {loss.part}" if at else "loss"


def read_pace(run: RunReader, targets: Sequence[str], rank: int, clock: Curve | None = None) -> Pace:
    """How far a run is: from a number that tells its steps, where one was logged, and from the last step times."""
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
    return make_pace(step, total, seconds, run.state == "running")


def make_pace(step: int | None, total: float | None, seconds: float | None, is_running: bool) -> Pace:
    """How far a run is, from its newest step, the number of steps it told, and the time of one."""
    total_steps = int(total) if total is not None and np.isfinite(total) and total >= 1 else None
    progress = None if step is None or total_steps is None else min(1.0, (step + 1) / total_steps)
    eta = None
    if seconds is not None and step is not None and total_steps is not None and is_running:
        # Past the end it was said to have, nobody knows.
        eta = (total_steps - step - 1) * seconds if step < total_steps else None
    return Pace(step, total_steps, progress, 1 / seconds if seconds else None, eta)


def median_seconds(seconds: Values) -> float | None:
    """The time of a step: the median of the last ones."""
    recent = seconds[-RECENT_STEPS:]
    measured = recent[np.isfinite(recent) & (recent > 0)]
    return float(np.median(measured)) if len(measured) else None


def spark(curve: Curve) -> tuple[float, ...]:
    """A curve in few points: the middle of each stretch, or its end where a spike sticks out; NaN stays NaN."""
    return _spark(curve.low, curve.high, curve.bad)


def spark_of(values: Values) -> tuple[float, ...]:
    """A series in few points, as `spark`."""
    return _spark(values, values, ~np.isfinite(values))


def _spark(low: Values, high: Values, bad: npt.NDArray[np.bool_]) -> tuple[float, ...]:
    if not len(low):
        return ()
    stretches = min(SPARK_POINTS, len(low))
    starts = np.arange(stretches) * len(low) // stretches
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
    """Name, plain number and unit of each vital sign that was recorded, without the loss."""
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


def _curve(run: RunReader, target: str, rank: int | str, first: int | None = None) -> Curve:
    return read_curve(run, target, "scalar", "value", rank, first, points=SPARK_POINTS * 4)


def _last(run: RunReader, target: str, rank: int) -> float | None:
    curve = _curve(run, target, rank)
    return float(curve.last[-1]) if len(curve.last) else None


def _step_seconds(run: RunReader, targets: Sequence[str], rank: int, step: int, clock: str) -> float | None:
    """Median time of the last steps: as they say themselves, or from one row to the next."""
    name = "step_seconds" if "step_seconds" in targets else clock
    recent = read_curve(run, name, "scalar", "value", rank, first=max(0, step - RECENT_STEPS), points=2 * RECENT_STEPS)
    if name == "step_seconds":
        return median_seconds(recent.last)
    with np.errstate(all="ignore"):
        return median_seconds(np.diff(recent.times) / np.diff(recent.steps))
