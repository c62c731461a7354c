"""What rules about the machine remember: since when something is so, and a course over time in a few points."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from vario.core.machine_options import PREFIX
from vario.rules import Step
from vario.rules.api.series_state import Last, PerSeries, Values

GPU = f"{PREFIX}gpu"


def lasts_seconds(step: Step, rule: str, target: str, is_so: bool) -> float:
    """Return for how long something has been so in all readings; 0 if it is not."""
    since = step.memory.get(f"{rule} since", Last)
    began = since.one("value", target)
    if not is_so or math.isnan(began):
        since.swap_one(target, step.time if is_so else math.nan, step.number)
        return 0.0
    return step.time - began


def gpus(step: Step) -> dict[str, dict[str, float]]:
    """Return the readings of each GPU in this step, by name."""
    found: dict[str, dict[str, float]] = {}
    for name, value in step.scalars.items():
        if name.startswith(GPU):
            gpu, _, number = name.removeprefix(PREFIX).partition("/")
            found.setdefault(gpu, {})[number] = value
    return found


def slowed_share(readings: Mapping[str, float]) -> float:
    """Return in which share of its readings a GPU was slowed down by heat or its power supply, not by a power limit."""
    return max(readings.get("thermal_share", 0.0), readings.get("slowdown_share", 0.0))


class Points(PerSeries):
    """Points of one series over time, oldest first, each the lowest value since the one before."""

    fields: ClassVar[Mapping[str, float]] = {"time": np.nan, "value": np.nan}


class CourseOfTime:
    """The course of one number in at most `most` points, kept in the memory of a rule."""

    def __init__(self, step: Step, name: str, most: int, seconds: float) -> None:
        """`seconds`: how far apart the points are at first."""
        self._most = most
        self._points = step.memory.get(name, Points)
        self._points.at((*map(str, range(most)), "latest", "apart"))
        self._time, self._value = self._points["time"], self._points["value"]
        if math.isnan(self._time[most + 1]):
            self._time[most + 1] = seconds

    def add(self, time: float, value: float, is_window: bool = False) -> bool:
        """Add a value; return whether that made a point.

        When there are too many points, the oldest is dropped (`is_window`), or else every other one: then the points
        span the whole run.
        """
        most, times, values = self._most, self._time, self._value
        values[most] = np.fmin(values[most], value)
        count = self._count
        if count and time - times[count - 1] < times[most + 1]:
            return False
        if count == most:
            kept = slice(1, None) if is_window else slice(0, None, 2)
            count = len(times[:most][kept])
            for column in (times, values):
                column[:count] = column[:most][kept].copy()
                column[count:most] = np.nan
            times[most + 1] *= 1 if is_window else 2
        times[count], values[count] = time, values[most]
        values[most] = np.nan
        return True

    @property
    def _count(self) -> int:
        return int(np.isfinite(self._time[: self._most]).sum())

    @property
    def points(self) -> tuple[Values, Values]:
        """Times and values, oldest first."""
        count = self._count
        return self._time[:count], self._value[:count]
