"""Where the time of a run's steps goes, from plain numbers that are recorded anyway.

Loaders, evaluations, checkpoints and the monitor are known of all steps. Passes and updates are measured in whole
steps only, which very short steps are not: what is left of the time is divided as in these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vario.runs.files.arrays import numbers
from vario.runs.reader import RunReader
from vario.runs.views.status.quantity_size import newest_of_rank

Values = npt.NDArray[np.float64]

MOST_STEPS, MOST_ROWS = 4096, 500_000
"""The last steps that are read: a second's work. With very many plain numbers, fewer."""
WARM_UP, WATCHED_MORE = 2, 16
"""First steps that are left out: they compile kernels and build plans, and the monitor looks at more of them."""
LEAST_STEPS = 3
LEAST_WHOLE = 4
"""With fewer steps measured in full the first ones count as well."""
STEP, WAIT, HOST = "step_seconds", "wait_seconds", "host_seconds"
LOADER, EVALUATION, CHECKPOINT, MONITOR = (
    "loader_seconds",
    "evaluation_seconds",
    "checkpoint_seconds",
    "monitor_seconds",
)
WORKERS = "loader_workers"
PASSES = {"forward_seconds": "forward", "backward_seconds": "backward", "update_seconds": "optimizer"}
REDUCTION = "reduction_seconds"
READ = (STEP, WAIT, HOST, LOADER, EVALUATION, CHECKPOINT, MONITOR, REDUCTION, *PASSES)


@dataclass(frozen=True)
class TimeSplit:
    """Where the time goes, as shares of it: they add up to 1."""

    shares: Mapping[str, float]
    """Of `input`, `forward`, `backward`, `optimizer`, `between` (the loop's own work between an update and the next
    pass), `communication` (from the last gradient of this rank to the end of backward: ranks reduce gradients), `rest`
    (within the step: loss, clipping, other communication), `evaluation`, `checkpoint`, `monitor`."""
    step_seconds: float
    """The mean."""
    first_step: int
    last_step: int
    num_steps: int
    num_whole_steps: int
    """The steps in which passes and updates were measured."""
    num_evaluations: int
    num_checkpoints: int
    """Steps with any of these before them."""
    loader_workers: int | None
    """Worker processes of the loader; None if unknown."""
    host_share: float | None
    """Time of the host for passes and updates over that of the device; None if they are the same."""


def read_time_split(run: RunReader, rank: int | None = None) -> TimeSplit | None:
    """Read where the last steps of a rank (default: the first) went; None if too little of that was recorded."""
    rank = next(iter(run.ranks), None) if rank is None else rank
    if rank is None or "scalar" not in run.quantities(rank):
        return None
    workers, found = _workers(run, rank), None
    for warm in (WATCHED_MORE, WARM_UP):
        found = split_time(*read_numbers(run, rank, first_step_of_interest(run, rank, warm), READ), workers)
        if found is not None and found.num_whole_steps >= LEAST_WHOLE:
            break  # later steps may be too short to be measured in full
    return found


def first_step_of_interest(run: RunReader, rank: int, most_warm: int = WATCHED_MORE) -> int:
    """Return the first step that counts for the speed of a rank: after a warm-up, and not too far from the last."""
    newest = newest_of_rank(run, "scalar", rank) or 0
    began = int(run.sessions[-1].get("first_step") or 0)
    warm = most_warm if newest - began >= 3 * WATCHED_MORE else WARM_UP
    num_steps = min(MOST_STEPS, MOST_ROWS // max(1, len(run.targets("scalar", rank=rank))))
    return max(began + warm, newest - num_steps + 1)


def read_numbers(
    run: RunReader, rank: int, first: int, wanted: Sequence[str]
) -> tuple[npt.NDArray[np.int64], dict[str, Values]]:
    """Read plain numbers at the steps that have a duration, from the first one on; NaN where not recorded."""
    return _table(run.columns("scalar", ["step", "target", "value"], rank, first), wanted)


def _table(table: Any, wanted: Sequence[str]) -> tuple[npt.NDArray[np.int64], dict[str, Values]]:
    if not table.num_rows:
        return np.zeros(0, np.int64), {}
    at, values = numbers(table.column("step")), numbers(table.column("value"))
    target = table.column("target").combine_chunks()
    names, codes = target.dictionary.to_pylist(), numbers(target.indices)
    rows = {name: np.flatnonzero(codes == names.index(name)) for name in wanted if name in names}
    if STEP not in rows:
        return np.zeros(0, np.int64), {}
    steps = np.unique(at[rows[STEP]])
    found: dict[str, Values] = {}
    for name, chosen in rows.items():
        places = np.minimum(np.searchsorted(steps, at[chosen]), len(steps) - 1)
        is_known = steps[places] == at[chosen]
        found[name] = np.full(len(steps), np.nan)
        found[name][places[is_known]] = values[chosen][is_known]
    return steps, found


def split_time(
    steps: npt.NDArray[np.int64], read: Mapping[str, Values], loader_workers: int | None = None
) -> TimeSplit | None:
    """Divide the time of these steps, given the plain numbers at each; None if there are too few."""
    nothing = np.zeros(len(steps))
    known = {name: np.nan_to_num(read.get(name, nothing)) for name in READ}
    total = float(known[STEP].sum())
    if len(steps) < LEAST_STEPS or not total > 0:
        return None
    whole = np.isfinite(read.get(WAIT, nothing * np.nan)) & (known[STEP] > 0)
    if not whole.any():
        return None
    sampled = _sampled({name: values[whole] for name, values in known.items()})
    loaded = float(known[LOADER][whole].sum())
    # What a device does not wait for is hidden behind its work.
    is_exposed = sampled["input"] / loaded if loaded else 1.0
    parts = {
        "input": float(known[LOADER].sum()) * min(1.0, is_exposed),
        "evaluation": float(known[EVALUATION].sum()),
        "checkpoint": float(known[CHECKPOINT].sum()),
        "monitor": _monitor(read, known) * total,
    }
    left = max(0.0, total - sum(parts.values()))
    divided = {name: sampled[name] for name in ("forward", "backward", "communication", "optimizer", "between", "rest")}
    scale = left / sum(divided.values()) if sum(divided.values()) else 0.0
    parts |= {name: seconds * scale for name, seconds in divided.items()}
    counted = sum(parts.values())
    host, device = (float(sum(known[name][whole].sum() for name in names)) for names in ((HOST,), PASSES))
    return TimeSplit(
        shares={name: seconds / counted for name, seconds in parts.items()},
        step_seconds=total / len(steps),
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        num_steps=len(steps),
        num_whole_steps=int(whole.sum()),
        num_evaluations=int((known[EVALUATION] > 0).sum()),
        num_checkpoints=int((known[CHECKPOINT] > 0).sum()),
        loader_workers=loader_workers,
        host_share=host / device if HOST in read and device else None,
    )


def _sampled(known: Mapping[str, Values]) -> dict[str, float]:
    """Seconds of each part in whole steps."""
    apart = known[EVALUATION] + known[CHECKPOINT]
    loader = np.minimum(known[LOADER], known[WAIT])
    parts = {"input": loader, "between": np.maximum(0.0, known[WAIT] - loader - apart)}
    parts |= {name: known[number] for number, name in PASSES.items()}
    parts["communication"] = known[REDUCTION]
    inside = known[WAIT] + known[REDUCTION] + sum(known[name] for name in PASSES)
    # In a step that recorded much, the monitor's time is that of several steps without it.
    monitor = np.minimum(known[MONITOR], np.maximum(0.0, known[STEP] - inside))
    parts["rest"] = np.maximum(0.0, known[STEP] - inside - monitor)
    return {name: float(seconds.sum()) for name, seconds in parts.items()}


def _monitor(read: Mapping[str, Values], known: Mapping[str, Values]) -> float:
    """The monitor's share, over all steps until it was last recorded."""
    told = np.flatnonzero(np.isfinite(read[MONITOR])) if MONITOR in read else np.zeros(0, np.int64)
    if len(told) < 2:
        return 0.0
    # The first one counts from an unknown step.
    since = slice(int(told[0]) + 1, int(told[-1]) + 1)
    whole = float(known[STEP][since].sum())
    return min(1.0, float(known[MONITOR][since].sum()) / whole) if whole else 0.0


def _workers(run: RunReader, rank: int) -> int | None:
    """The worker processes of the latest loader: recorded when it changes."""
    if WORKERS not in run.targets("scalar", rank=rank):
        return None
    values = run.series(WORKERS, "scalar", rank=rank).values
    return int(values[-1]) if len(values) and values[-1] >= 0 else None
