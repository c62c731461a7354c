"""Readings: what was read of the machine at one time, and what becomes of several."""

from __future__ import annotations

from dataclasses import dataclass, field

from vario.core.machine_options import HIGHEST, LOWEST

Numbers = dict[str, float]
"""By name, without the prefix."""


@dataclass
class Reading:
    """What one look at the machine finds, each number under the name it is recorded by."""

    levels: Numbers = field(default_factory=dict)
    """As they are now."""
    totals: Numbers = field(default_factory=dict)
    """Counters that only grow; what is recorded is by how much per second."""
    constants: Numbers = field(default_factory=dict)
    """What never changes: recorded once."""
    watts: dict[str, float] = field(default_factory=dict)
    """The power of each device."""
    joules: dict[str, float] = field(default_factory=dict)
    """The energy each device has used, for those that count it."""


class Rates:
    """Turns totals into what they grow by per second."""

    def __init__(self) -> None:
        self._last: Numbers = {}
        self._at = 0.0

    def follow(self, totals: Numbers, now: float) -> Numbers:
        """Return the rates since the last call; none of a total that is new or was set back."""
        last, seconds = self._last, now - self._at
        self._last, self._at = totals, now
        if seconds <= 0:
            return {}
        growth = {name: total - last[name] for name, total in totals.items() if name in last}
        return {name: grown / seconds for name, grown in growth.items() if grown >= 0}


class Energy:
    """What all devices have used since the first reading, in watt-hours."""

    def __init__(self) -> None:
        self.watt_hours = 0.0
        self.is_known = False
        self._last: dict[str, float] = {}
        self._watts: dict[str, float] = {}
        self._at = 0.0

    def follow(self, reading: Reading, now: float) -> None:
        """Add what was used since the last reading: as counted by the device, or else its mean power over time."""
        seconds = now - self._at if self.is_known else 0.0
        for name, watts in reading.watts.items():
            counted = reading.joules.get(name, -1.0) - self._last.get(name, float("inf"))
            if counted < 0:
                counted = seconds * (watts + self._watts[name]) / 2 if name in self._watts else 0.0
            self.watt_hours += counted / 3600
        for name in reading.joules.keys() - reading.watts.keys():
            self.watt_hours += max(0.0, reading.joules[name] - self._last.get(name, float("inf"))) / 3600
        self.is_known = self.is_known or bool(reading.watts or reading.joules)
        self._last, self._watts, self._at = dict(reading.joules), dict(reading.watts), now


class Gathered:
    """The readings since the last record, in little space: sum, number and extreme of each level."""

    def __init__(self) -> None:
        self._levels: dict[str, list[float]] = {}

    def add(self, levels: Numbers) -> None:
        """Add a reading."""
        for name, value in levels.items():
            found = self._levels.get(name)
            if found is None:
                self._levels[name] = [value, 1, value]
            else:
                found[0] += value
                found[1] += 1
                found[2] = min(found[2], value) if runs_out(name) else max(found[2], value)

    def take(self) -> Numbers:
        """Return the mean of each level, and its extreme if it was read several times; start again."""
        taken, self._levels = self._levels, {}
        numbers: Numbers = {}
        for name, (total, count, extreme) in taken.items():
            numbers[name] = total / count
            if count > 1 and not name.endswith("_share"):
                numbers[name + (LOWEST if runs_out(name) else HIGHEST)] = extreme
        return numbers


def runs_out(name: str) -> bool:
    """Whether the lowest of several readings counts."""
    return name in ("memory_available_bytes", "disk_free_bytes")
