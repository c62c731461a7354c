"""What rules remember: a few numbers per series, for all series of a quantity at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]
Saved = dict[str, npt.NDArray[np.generic]]
"""As it is written with the run: arrays by name."""

LEVEL_RATE = 0.03
FAST, SLOW = 1 / 8, 1 / 64
YOUNG = 8
"""Observations after which a series is known well enough for outliers to be cut."""
PEAK_DECAY = 0.998
LARGEST = 1e150
KNOWN = 12
"""Observations without which a series is not known, however long it was watched."""

_NOTHING = np.zeros((0, 0))
_NOWHERE = np.zeros(0, np.int64)


class PerSeries:
    """Vectors with one entry per series name; names that are new get room."""

    fields: ClassVar[Mapping[str, float]] = {}
    """Each vector and what a new entry starts with."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._table: Values = _NOTHING
        self._vectors: dict[str, Values] = {}
        """The rows of the table. Made when they are needed: rules name what they remember anew in each step, and mostly
        it is there."""
        self._last: tuple[Sequence[str], Positions] = ((), _NOWHERE)

    def at(self, names: Sequence[str]) -> Positions:
        """Where these series have their entries."""
        if names is self._last[0] or names == self._last[0]:
            return self._last[1]
        for name in names:
            self._rows.setdefault(name, len(self._rows))
        missing = len(self._rows) - len(next(iter(self._made().values())))
        if missing > 0:
            self._fill(dict(self._vectors), max(missing, len(self._rows)))
        self._last = names, np.array([self._rows[name] for name in names], np.int64)
        return self._last[1]

    def _made(self) -> dict[str, Values]:
        if not self._vectors:
            self._fill({}, 16)
        return self._vectors

    def _fill(self, known: Mapping[str, Values], room: int) -> None:
        """Make the table of what is known, with room for more series."""
        length = max(map(len, known.values()), default=0)
        starts = np.array(list(self.fields.values()))
        self._table = np.repeat(starts[:, None], length + room, axis=1)
        self._vectors = dict(zip(self.fields, self._table, strict=True))
        for name, vector in known.items():
            self._vectors[name][: len(vector)] = vector

    def read(self, field: str, names: Sequence[str]) -> Values:
        """One number of each of these series."""
        rows = self.at(names)
        found: Values = self._made()[field][rows]
        return found

    def row(self, name: str) -> int:
        """Where one series has its entries."""
        found = self._rows.get(name)
        return int(self.at((name,))[0]) if found is None else found

    @property
    def names(self) -> list[str]:
        """All series seen so far."""
        return list(self._rows)

    def __getitem__(self, field: str) -> Values:
        return self._made()[field]

    def save(self) -> Saved:
        """Everything, as arrays."""
        names = np.array(list(self._rows), dtype=np.str_)
        return {"names": names, **{key: vector[: len(names)].copy() for key, vector in self._made().items()}}

    def restore(self, saved: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Take up what was saved."""
        self._rows = {str(name): row for row, name in enumerate(saved["names"])}
        self._last = ((), _NOWHERE)
        self._fill({key: saved[key].astype(np.float64) for key in self.fields if key in saved}, len(self._rows) + 16)


@dataclass(frozen=True)
class Deviation:
    """How each series of one step compares with its own past."""

    targets: Sequence[str]
    values: Values
    """As observed."""
    usual: Values
    """What the value is by habit, in its own unit."""
    spread: Values
    """The usual distance from it, where differences are taken (logarithms, unless the trend is linear)."""
    distance: Values
    """From the usual value; 0 where there is no past or no number."""
    z: Values
    """The distance in units of the spread."""
    step_off: Values
    """The distance from the mean of the last few: large only where it left them at once."""
    gap: Values
    """How far the mean of the last few has left the mean of many."""
    usual_gap: Values
    peak: Values
    """The largest distance of the past, slowly forgotten."""
    age: Values
    """How often each series was seen before."""
    warmth: Values
    """For how many steps each series is known, once it was seen a dozen times; until then how often it was seen."""
    is_linear: bool = False

    def low(self, index: int) -> float:
        """The lower end of what is usual."""
        return self._end(index, -3.0)

    def high(self, index: int) -> float:
        """The upper end of what is usual."""
        return self._end(index, 3.0)

    def _end(self, index: int, width: float) -> float:
        reach = width * self.spread[index]
        return float(self.usual[index] + reach if self.is_linear else self.usual[index] * np.exp(reach))

    def ratio(self, index: int) -> float:
        """How many times the usual value this is; the difference, of a linear trend."""
        return float(self.distance[index] if self.is_linear else np.exp(self.distance[index]))


class Departure(NamedTuple):
    """How one plain number compares with its own past; see Deviation."""

    value: float
    usual: float
    spread: float
    distance: float
    fast: float
    """The mean of the last few, this one included; of logarithms, unless the trend is linear."""
    slow: float
    """The mean of many."""
    age: float
    warmth: float


class Trend(PerSeries):
    """Level, spread, fast and slow mean of many series: outliers move it little, NaN and Inf not at all."""

    fields: ClassVar[Mapping[str, float]] = {
        **dict.fromkeys(("level", "dev", "fast", "slow", "usual_gap", "peak", "age"), 0.0),
        "born": np.nan,
    }

    def __init__(self, linear: bool = False, floor: float = 0.02) -> None:
        """`linear`: differences count, not ratios; `floor` is the least spread."""
        super().__init__()
        self._linear = linear
        self._floor = floor

    def update(self, targets: Sequence[str], values: Values, step: int | None = None) -> Deviation:
        """Compare one observation of each series with its past, then learn from it.

        With the step's number a series that is watched rarely is known sooner: a dozen observations do.
        """
        rows = self.at(targets)
        with np.errstate(all="ignore"):
            x = values if self._linear else np.log(values)
        seen = np.isfinite(x)
        x = np.where(seen, x, 0.0)
        age = self["age"][rows]
        is_new = age == 0
        born = self["born"][rows]
        known_for = age if step is None else np.maximum(age, np.where(np.isnan(born), 0.0, step - born))
        level = np.where(is_new, x, self["level"][rows])
        dev = self["dev"][rows]
        spread = np.maximum(1.25 * dev, self._floor)
        distance = np.where(seen, x - level, 0.0)
        peak = self["peak"][rows]
        fast, slow = (np.where(is_new, x, self[name][rows]) for name in ("fast", "slow"))
        step_off = np.where(seen, x - fast, 0.0)
        # Outliers count as far as three spreads, once there is a spread to speak of.
        cut = np.where(age < YOUNG, distance, np.clip(distance, -3 * spread, 3 * spread))
        own = 1 / (age + 1)
        rate = np.maximum(LEVEL_RATE, own)
        fast = fast + np.maximum(FAST, own) * (x - fast)
        slow = slow + np.maximum(SLOW, own) * (x - slow)
        gap = np.where(seen, fast - slow, 0.0)
        usual_gap = self["usual_gap"][rows]
        size = np.abs(gap)
        bounded = np.where(age < YOUNG, size, np.minimum(size, 3 * usual_gap + self._floor / 10))
        after = {
            "level": level + rate * cut,
            "dev": dev + rate * (np.abs(cut) - dev),
            "fast": fast,
            "slow": slow,
            "usual_gap": usual_gap + np.maximum(SLOW, own) * (bounded - usual_gap),
            # The first few distances are those of a level not yet found.
            "peak": np.where(
                age < YOUNG,
                0.0,
                np.maximum(PEAK_DECAY * peak, np.minimum(np.abs(distance), 3 * np.maximum(peak, spread))),
            ),
            "age": age + 1,
            "born": np.where(np.isnan(born), np.nan if step is None else step, born),
        }
        kept = rows if seen.all() else rows[seen]
        for name, vector in after.items():
            self[name][kept] = vector if seen.all() else vector[seen]
        return Deviation(
            targets=targets,
            values=values,
            usual=level if self._linear else np.exp(level),
            spread=spread,
            distance=distance,
            z=distance / spread,
            step_off=step_off,
            gap=gap,
            usual_gap=usual_gap,
            peak=peak,
            age=age,
            warmth=np.where(age >= KNOWN, known_for, age),
            is_linear=self._linear,
        )

    def follow(self, name: str, value: float, step: int | None = None) -> Departure | None:
        """The same for one plain number, in a tenth of the time; None where it is not finite."""
        row = self.row(name)
        # In the order of `fields`.
        level, dev, fast, slow, usual_gap, peak, age, born = self._table[:, row].tolist()
        x = value if self._linear else (np.log(value).item() if value > 0 else math.nan)
        # Beyond this the arithmetic of arrays and of numbers part: one makes an Inf where the other raises.
        if not abs(x) + abs(level) + dev + abs(fast) + abs(slow) + usual_gap + peak < LARGEST:
            return None
        if age == 0:
            level = fast = slow = x
        spread = max(1.25 * dev, self._floor)
        distance = x - level
        is_young = age < YOUNG
        cut = distance if is_young else min(max(distance, -3 * spread), 3 * spread)
        own = 1 / (age + 1)
        rate, slow_rate = max(LEVEL_RATE, own), max(SLOW, own)
        fast, slow = fast + max(FAST, own) * (x - fast), slow + slow_rate * (x - slow)
        size = abs(fast - slow)
        bounded = size if is_young else min(size, 3 * usual_gap + self._floor / 10)
        is_known = not math.isnan(born)
        self._table[:, row] = (
            level + rate * cut,
            dev + rate * (abs(cut) - dev),
            fast,
            slow,
            usual_gap + slow_rate * (bounded - usual_gap),
            0.0 if is_young else max(PEAK_DECAY * peak, min(abs(distance), 3 * max(peak, spread))),
            age + 1,
            born if is_known or step is None else step,
        )
        known_for = age if step is None else max(age, step - born if is_known else 0.0)
        usual = level if self._linear else np.exp(level).item()
        return Departure(value, usual, spread, distance, fast, slow, age, known_for if age >= KNOWN else age)


class Streak(PerSeries):
    """How many observations in a row something has been true of each series."""

    fields: ClassVar[Mapping[str, float]] = {"count": 0.0}

    def update(self, targets: Sequence[str], is_true: Flags) -> Values:
        """The length of each streak, this observation included."""
        rows = self.at(targets)
        count: Values = np.where(is_true, self["count"][rows] + 1, 0.0)
        self["count"][rows] = count
        return count

    def follow(self, name: str, is_true: bool) -> int:
        """The length of one streak, this observation included: `update` for a plain number, in a tenth of the time."""
        row, counts = self.row(name), self["count"]
        length = counts.item(row) + 1 if is_true else 0.0
        counts[row] = length
        return int(length)


class Longest(PerSeries):
    """The largest number of each series so far."""

    fields: ClassVar[Mapping[str, float]] = {"largest": 0.0}

    def update(self, targets: Sequence[str], values: Values) -> Values:
        """The largest up to now, this one included."""
        rows = self.at(targets)
        largest: Values = np.fmax(self["largest"][rows], values)
        self["largest"][rows] = largest
        return largest


class Calm(PerSeries):
    """Which series have been calm for a while: only what was calm before can be said to have left that."""

    fields: ClassVar[Mapping[str, float]] = {"count": 0.0, "reached": 0.0}

    def update(self, targets: Sequence[str], is_calm: Flags, needed: int) -> Flags:
        """Whether each series was calm so many observations in a row, at any time up to now."""
        rows = self.at(targets)
        count = np.where(is_calm, self["count"][rows] + 1, 0.0)
        self["count"][rows] = count
        self["reached"][rows] = np.maximum(self["reached"][rows], count >= needed)
        found: Flags = self["reached"][rows] > 0
        return found


class Last(PerSeries):
    """The last number of each series, and its step."""

    fields: ClassVar[Mapping[str, float]] = {"value": np.nan, "step": np.nan}

    def swap(self, targets: Sequence[str], values: Values, step: int) -> tuple[Values, Values]:
        """Remember these; answers the numbers and steps that were remembered, NaN where none was."""
        rows = self.at(targets)
        value, when = self["value"][rows], self["step"][rows]
        self["value"][rows], self["step"][rows] = values, float(step)
        return value, when

    def swap_one(self, name: str, value: float, step: int) -> float:
        """The same for one number, without the step that was remembered."""
        row, values = self.row(name), self["value"]
        last = values.item(row)
        values[row], self["step"][row] = value, step
        return last


Kind = TypeVar("Kind", bound=PerSeries)


class Memory:
    """Everything the rules of one rank remember, by name; can be saved with the run and taken up again."""

    def __init__(self) -> None:
        self._kept: dict[str, PerSeries] = {}
        self._restored: dict[str, Saved] = {}
        self.parts: dict[tuple[str, str], tuple[tuple[str, ...], Positions, tuple[str, ...]]] = {}
        """Not remembered: where the rows of each part of a quantity were the last time."""

    def get(self, name: str, made: Kind) -> Kind:
        """What is remembered under a name; `made` when nothing is."""
        found = self._kept.get(name)
        if found is None:
            found = self._kept[name] = made
            if name in self._restored:
                found.restore(self._restored.pop(name))
        if not isinstance(found, type(made)):
            raise TypeError(f"'{name}' is remembered as a {type(found).__name__}, not a {type(made).__name__}")
        return found

    def save(self) -> Saved:
        """Everything, as arrays by `name|field`."""
        whole = {name: kept.save() for name, kept in self._kept.items()}
        whole.update(self._restored)
        return {f"{name}|{field}": array for name, saved in whole.items() for field, array in saved.items()}

    def restore(self, saved: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Take up what was saved; each part when it is asked for."""
        for key, array in saved.items():
            name, _, field = key.rpartition("|")
            self._restored.setdefault(name, {})[field] = array
