"""What rules remember: a few numbers per series, for all series of a quantity at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from vario.rules.api.deviation import Departure as Departure
from vario.rules.api.deviation import Deviation as Deviation
from vario.rules.api.deviation import Flags as Flags
from vario.rules.api.deviation import Values as Values

Positions = npt.NDArray[np.int64]
Saved = dict[str, npt.NDArray[np.generic]]
"""How memory is stored with the run: arrays by name."""

LEVEL_RATE = 0.03
RARE_RATE = 1 / 12
FAST, SLOW = 1 / 8, 1 / 64
YOUNG = 8
"""Observations after which a series is known well enough to clip outliers."""
PEAK_DECAY = 0.998
LARGEST = 1e150
KNOWN = 10
"""The fewest observations for a series to be known, however long it was watched."""

_NOTHING = np.zeros((0, 0))
_NOWHERE = np.zeros(0, np.int64)


class PerSeries:
    """Vectors with one entry per series; grows as new names appear."""

    fields: ClassVar[Mapping[str, float]] = {}
    """Each vector and the initial value of a new entry."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._table: Values = _NOTHING
        self._vectors: dict[str, Values] = {}
        """The rows of the table, built on first use: rules look up their memory in each step, and it mostly exists."""
        self._last: tuple[Sequence[str], Positions] = ((), _NOWHERE)

    def at(self, names: Sequence[str]) -> Positions:
        """Return the positions of these series' entries."""
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
        """Build the table, with room for more series."""
        length = max(map(len, known.values()), default=0)
        starts = np.array(list(self.fields.values()))
        self._table = np.repeat(starts[:, None], length + room, axis=1)
        self._vectors = dict(zip(self.fields, self._table, strict=True))
        for name, vector in known.items():
            self._vectors[name][: len(vector)] = vector

    def read(self, field: str, names: Sequence[str]) -> Values:
        """Return one number for each of these series."""
        rows = self.at(names)
        found: Values = self._made()[field][rows]
        return found

    def row(self, name: str) -> int:
        """Return the position of one series' entry."""
        found = self._rows.get(name)
        return int(self.at((name,))[0]) if found is None else found

    @property
    def num_series(self) -> int:
        """How many series were seen so far."""
        return len(self._rows)

    @property
    def names(self) -> list[str]:
        """All series seen so far."""
        return list(self._rows)

    def __getitem__(self, field: str) -> Values:
        return self._made()[field]

    def one(self, field: str, name: str) -> float:
        """Return one field of one series. A new series may move the vectors, so its row is found first."""
        row = self.row(name)
        return float(self._made()[field].item(row))

    def save(self) -> Saved:
        """Return all vectors as arrays."""
        names = np.array(list(self._rows), dtype=np.str_)
        return {"names": names, **{key: vector[: len(names)].copy() for key, vector in self._made().items()}}

    def restore(self, saved: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Restore what `save` returned."""
        self._rows = {str(name): row for row, name in enumerate(saved["names"])}
        self._last = ((), _NOWHERE)
        self._fill({key: saved[key].astype(np.float64) for key in self.fields if key in saved}, len(self._rows) + 16)


class Trend(PerSeries):
    """Level, spread, fast and slow mean of many series: robust to outliers, ignores NaN and Inf."""

    fields: ClassVar[Mapping[str, float]] = {
        **dict.fromkeys(("level", "dev", "fast", "slow", "usual_gap", "peak", "age"), 0.0),
        **dict.fromkeys(("born", "last"), np.nan),
    }

    def __init__(self, linear: bool = False, floor: float = 0.02) -> None:
        """`linear`: compare differences, not ratios; `floor`: the smallest spread."""
        super().__init__()
        self._linear = linear
        self._floor = floor
        self._followed: dict[str, list[float]] = {}
        """The entries of plain numbers that were followed since anybody looked at the table."""

    def _made(self) -> dict[str, Values]:
        vectors = super()._made()
        while self._followed:
            name, entries = self._followed.popitem()
            self._table[:, self._rows[name]] = entries
        return vectors

    def update(self, targets: Sequence[str], values: Values, step: int | None = None) -> Deviation:
        """Compare one observation of each series with its past, then learn from it.

        Pass the step's number so that a series watched rarely is known after ten observations.
        """
        rows = self.at(targets)
        with np.errstate(all="ignore"):
            x = values if self._linear else np.log(values)
        seen = np.isfinite(x)
        is_all_seen = bool(seen.all())
        if not is_all_seen:
            x = np.where(seen, x, 0.0)
        self._made()
        # In the order of `fields`.
        level, dev, fast, slow, usual_gap, peak, age, born, last = self._table[:, rows]
        is_new = age == 0
        if is_new.any():
            level, fast, slow = (np.where(is_new, x, past) for past in (level, fast, slow))
        is_unborn = np.isnan(born)
        known_for = age if step is None else np.maximum(age, np.where(is_unborn, 0.0, step - born))
        spread = np.maximum(1.25 * dev, self._floor)
        distance, step_off = x - level, x - fast
        own = 1 / (age + 1)
        slow_rate = np.maximum(SLOW, own)
        fast = fast + np.maximum(FAST, own) * step_off
        slow = slow + slow_rate * (x - slow)
        gap = fast - slow
        if not is_all_seen:
            distance, step_off, gap = (np.where(seen, found, 0.0) for found in (distance, step_off, gap))
        size, reach = np.abs(gap), np.abs(distance)
        is_young = age < YOUNG
        # Clip outliers at three spreads, once the spread is known.
        cut = np.where(is_young, distance, np.clip(distance, -3 * spread, 3 * spread))
        bounded = np.where(is_young, size, np.minimum(size, 3 * usual_gap + self._floor / 10))
        rate = np.maximum(LEVEL_RATE, own)
        if step is not None:
            # What is watched rarely is judged by its last dozen looks: the wild first steps were all watched.
            apart = step - last
            rate = np.maximum(rate, np.where(apart > 1, np.minimum(RARE_RATE, LEVEL_RATE * apart), 0.0))
        # The first few distances are from a level that is not settled yet.
        far = np.where(is_young, 0.0, np.maximum(PEAK_DECAY * peak, np.minimum(reach, 3 * np.maximum(peak, spread))))
        moved = level + rate * cut, dev + rate * (np.abs(cut) - dev), fast, slow
        usual = usual_gap + slow_rate * (bounded - usual_gap)
        birth = np.where(is_unborn, np.nan if step is None else step, born)
        after = np.stack((*moved, usual, far, age + 1, birth, np.full(len(rows), np.nan if step is None else step)))
        self._table[:, rows if is_all_seen else rows[seen]] = after if is_all_seen else after[:, seen]
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

    def entries(self, name: str) -> list[float]:
        """Return what is known about one plain number, in the order of `fields`."""
        known = self._followed.get(name)
        if known is None:
            row = self.row(name)
            self._made()
            known = self._table[:, row].tolist()
        return known

    def is_within(self, name: str, value: float, spreads: float) -> bool:
        """Whether one plain number is no further than that from its usual value; for a linear trend."""
        level, dev, *_ = self.entries(name)
        return abs(value - level) <= spreads * max(1.25 * dev, self._floor)

    def latest(self, name: str) -> float:
        """Return the recent mean of one plain number."""
        return self.entries(name)[2]

    def follow(self, name: str, value: float, step: int | None = None) -> Departure | None:
        """`update` for one plain number, ten times as fast; None if it is not finite."""
        level, dev, fast, slow, usual_gap, peak, age, born, last = self.entries(name)
        x = value if self._linear else (np.log(value).item() if value > 0 else math.nan)
        # Beyond this, array and scalar arithmetic differ: one gives Inf where the other raises.
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
        if step is not None and step - last > 1:
            rate = max(rate, min(RARE_RATE, LEVEL_RATE * (step - last)))
        fast, slow = fast + max(FAST, own) * (x - fast), slow + slow_rate * (x - slow)
        size = abs(fast - slow)
        bounded = size if is_young else min(size, 3 * usual_gap + self._floor / 10)
        is_known = not math.isnan(born)
        self._followed[name] = [
            level + rate * cut,
            dev + rate * (abs(cut) - dev),
            fast,
            slow,
            usual_gap + slow_rate * (bounded - usual_gap),
            0.0 if is_young else max(PEAK_DECAY * peak, min(abs(distance), 3 * max(peak, spread))),
            age + 1,
            born if is_known or step is None else float(step),
            math.nan if step is None else float(step),
        ]
        known_for = age if step is None else max(age, step - born if is_known else 0.0)
        usual = level if self._linear else np.exp(level).item()
        return Departure(value, usual, spread, distance, fast, slow, age, known_for if age >= KNOWN else age)


class Streak(PerSeries):
    """How many observations in a row something has been true for each series."""

    fields: ClassVar[Mapping[str, float]] = {"count": 0.0}

    def update(self, targets: Sequence[str], is_true: Flags) -> Values:
        """Return the length of each streak, this observation included."""
        rows = self.at(targets)
        count: Values = np.where(is_true, self["count"][rows] + 1, 0.0)
        self["count"][rows] = count
        return count

    def follow(self, name: str, is_true: bool) -> int:
        """`update` for one plain number, ten times as fast."""
        row, counts = self.row(name), self["count"]
        length = counts.item(row) + 1 if is_true else 0.0
        counts[row] = length
        return int(length)


class Longest(PerSeries):
    """The largest value of each series so far."""

    fields: ClassVar[Mapping[str, float]] = {"largest": 0.0}

    def update(self, targets: Sequence[str], values: Values) -> Values:
        """Return the largest value so far, this one included."""
        rows = self.at(targets)
        largest: Values = np.fmax(self["largest"][rows], values)
        self["largest"][rows] = largest
        return largest


class Calm(PerSeries):
    """Which series have been calm for a while: only those can be said to have started moving."""

    fields: ClassVar[Mapping[str, float]] = {"count": 0.0, "reached": 0.0}

    def update(self, targets: Sequence[str], is_calm: Flags, needed: int) -> Flags:
        """Return whether each series has ever been calm for this many observations in a row."""
        rows = self.at(targets)
        count = np.where(is_calm, self["count"][rows] + 1, 0.0)
        self["count"][rows] = count
        self["reached"][rows] = np.maximum(self["reached"][rows], count >= needed)
        found: Flags = self["reached"][rows] > 0
        return found


class Last(PerSeries):
    """The last value of each series, and its step."""

    fields: ClassVar[Mapping[str, float]] = {"value": np.nan, "step": np.nan}

    def swap(self, targets: Sequence[str], values: Values, step: int) -> tuple[Values, Values]:
        """Store new values and return the previous ones with their steps, NaN if there were none."""
        rows = self.at(targets)
        value, when = self["value"][rows], self["step"][rows]
        self["value"][rows], self["step"][rows] = values, float(step)
        return value, when

    def swap_one(self, name: str, value: float, step: int) -> float:
        """`swap` for one number; does not return the previous step."""
        row, vectors = self.row(name), self._made()
        values = vectors["value"]
        last = values.item(row)
        values[row], vectors["step"][row] = value, step
        return last


Kind = TypeVar("Kind", bound=PerSeries)


class Memory:
    """Everything the rules of one rank remember, by name; saved with the run and restored on resume."""

    def __init__(self) -> None:
        self._kept: dict[str, PerSeries] = {}
        self._restored: dict[str, Saved] = {}
        self._first_step: int | None = None
        self.parts: dict[tuple[str, str], tuple[tuple[str, ...], Positions, tuple[str, ...]]] = {}
        """A cache, not saved: where the rows of each part of a quantity were last time."""
        self.worked_out: dict[str, Any] = {}
        """A cache, not saved: what rules derive from the names of rows, which seldom change."""

    def find(self, name: str, kind: type[Kind]) -> Kind | None:
        """Return what is remembered under a name, if it has been used before."""
        found = self._kept.get(name)
        return found if type(found) is kind else None

    def get(self, name: str, kind: type[Kind] | Kind) -> Kind:
        """Return what is remembered under a name; if nothing is, a new one of this kind, or the given one."""
        found = self._kept.get(name)
        if found is None:
            found = self._kept[name] = kind() if isinstance(kind, type) else kind
            if name in self._restored:
                found.restore(self._restored.pop(name))
        expected = kind if isinstance(kind, type) else type(kind)
        if not isinstance(found, expected):
            raise TypeError(f"'{name}' is remembered as a {type(found).__name__}, not a {expected.__name__}")
        return found

    def first_step(self, now: int) -> int:
        """Return the first step that was seen: `now`, if there was none before. Called for every step."""
        if self._first_step is None:
            seen = self.get("first step", Last)
            row = seen.row("step")
            if math.isnan(seen["value"].item(row)):
                seen["value"][row] = float(now)
            self._first_step = int(seen["value"].item(row))
        return self._first_step

    def save(self) -> Saved:
        """Return everything as arrays by `name|field`."""
        whole = {name: kept.save() for name, kept in self._kept.items()}
        whole.update(self._restored)
        return {f"{name}|{field}": array for name, saved in whole.items() for field, array in saved.items()}

    def restore(self, saved: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Restore what `save` returned, each part when it is first used."""
        for key, array in saved.items():
            name, _, field = key.rpartition("|")
            self._restored.setdefault(name, {})[field] = array
