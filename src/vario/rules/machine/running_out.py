"""Memory and disks of the host that are running out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vario.core.machine_options import PREFIX
from vario.core.text import duration, size
from vario.rules import Finding, Step, rule
from vario.rules.api.series_state import Last, Streak, Values
from vario.rules.machine.lasting import CourseOfTime

PRIVATE, AVAILABLE, FREE = (
    f"{PREFIX}{name}" for name in ("process_private_bytes", "memory_available_bytes", "disk_free_bytes")
)
POINTS, APART_SECONDS = 24, 30.0
LEAST_POINTS = 12
STILL = 0.8
"""Growth in the last quarter, as a share of that in the first one: what levels off has less."""
IN_A_ROW = 3
WINDOW, HALF = 21, 0.25
"""Points of the latest course of a disk, and the least share of its decline that each half must have."""
AHEAD = 6.0
"""How many times the time that was observed a forecast may reach."""


@rule("relative", needs=PRIVATE)
def memory_leak(step: Step, share: float = 0.2, minutes: float = 60.0, hours: float = 24.0) -> Iterator[Finding]:
    """Memory of the training process that grows steadily, and will use up what the host has left within a day.

    Why: the system kills the process when memory runs out, often after many hours. Growth that ends or slows down, such
    as a cache filling up, is not reported; mapped files do not count.

    Cause: something is kept at every step: losses with their graphs, rows in lists, entries of a cache without limit

    Points to: loop 3

    Next: Look for lists and dictionaries that grow at every step, and keep `loss.item()` instead of `loss`. `vario show
    NAME` shows when it began to grow.
    """
    if (value := step.scalars.get(PRIVATE)) is None:
        return
    left = _latest(step, AVAILABLE)
    course = CourseOfTime(step, "memory_leak course", POINTS, APART_SECONDS)
    verdict = step.memory.get("memory_leak", Streak)
    if course.add(step.time, value):
        times, values = course.points
        is_known = verdict.one("count", "grows") >= IN_A_ROW
        is_steady = _grows_steadily(times, values, share, 60 * minutes, 3600 * hours, left)
        verdict.follow("grows", is_steady or (is_known and values[-1] > np.median(values[len(values) // 2 :])))
    if verdict.one("count", "grows") < IN_A_ROW:
        return
    times, values = course.points
    first = len(times) // 4
    rate = max(1.0, (values[-1] - values[first]) / (times[-1] - times[first]))
    took, last = duration(step.time - times[first]), duration(left / rate)
    yield Finding(
        f"the memory of this process grows steadily, from {size(values[first])} to {size(value)} in {took}; at this "
        f"rate the {size(left)} that are left last {last}",
        "scalar",
        PRIVATE,
        value,
        high=float(values[first]),
        scope="global",
        strength=float(np.log(max(1.0, value) / max(1.0, values[first]))),
    )


def _grows_steadily(times: Values, values: Values, share: float, seconds: float, within: float, left: float) -> bool:
    """Whether memory has grown long enough, by enough and as fast as before, and will be used up in time."""
    observed = times[-1] - times[0]
    if len(times) < LEAST_POINTS:
        return False
    times, values = times[len(times) // 4 :], values[len(times) // 4 :]  # without the start
    grown = values[-1] - values[0]
    if grown < share * values[0]:
        return False
    parts = [float(np.mean(part)) for part in np.array_split(values, 4)]
    steps = np.diff(parts)
    if not (steps > 0).all() or steps[-1] < STILL * steps[0]:
        return False
    lasts = left / (grown / (times[-1] - times[0]))
    # Less is enough where it is urgent.
    return bool(lasts < within and (observed >= seconds or (3 * observed >= seconds and lasts < observed)))


@rule("limit", needs=FREE)
def disk_full(step: Step, minutes: float = 60.0) -> Iterator[Finding]:
    """A disk that will be full within an hour, at the rate of the last minutes.

    Why: checkpoints cannot be written to a full disk, and most trainers end when that fails. The rule checks the disk
    that holds the run's folder.

    Cause: checkpoints that are never removed, or files of another program

    Points to: loop 1

    Next: Find out what is written there (`du -x`), remove files that nobody needs, or keep fewer checkpoints.
    """
    if (value := step.scalars.get(FREE)) is None:
        return
    course = CourseOfTime(step, "disk_full course", WINDOW, APART_SECONDS)
    verdict = step.memory.get("disk_full", Streak)
    if course.add(step.time, value, is_window=True):
        verdict.follow("fills", _seconds_left(*course.points) < 60 * minutes)
    if verdict.one("count", "fills") < IN_A_ROW:
        return
    times, values = course.points
    yield Finding(
        f"the disk of this run has {size(value)} left, {size(values[0])} {duration(step.time - times[0])} ago: at this "
        f"rate it is full in {duration(_seconds_left(times, values, is_sure=True))}",
        "scalar",
        FREE,
        value,
        high=float(values[0]),
        scope="global",
        strength=1.0,
        severity="note",
    )


def _seconds_left(times: Values, values: Values, is_sure: bool = False) -> float:
    """When a disk will be full: infinite if it did not fill steadily (unless `is_sure`), or that is too far ahead."""
    seconds, used = times[-1] - times[0], values[0] - values[-1]
    if seconds <= 0 or used <= 0:
        return float("inf")
    left = float(values[-1] * seconds / used)
    if is_sure:
        return left
    middle = values[len(values) // 2]
    halves = values[0] - middle, middle - values[-1]
    is_steady = len(times) >= WINDOW // 3 and min(halves) >= HALF * used
    return left if is_steady and left < AHEAD * seconds else float("inf")


def _latest(step: Step, name: str) -> float:
    """The last value of a plain number, in this step or before; NaN if there was none."""
    known = step.memory.get("machine latest", Last)
    if name in step.scalars:
        known.swap_one(name, step.scalars[name], step.number)
    return float(known.one("value", name))
