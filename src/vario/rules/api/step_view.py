"""A step as rules see it: all rows of one rank, micro-steps merged, and its plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from vario.core.quantities import LOSSES
from vario.core.records import (
    COLUMNS,
    COUNT,
    INFS,
    MAX,
    MIN,
    NANS,
    SUM,
    SUM_SQUARES,
    ZEROS,
    Frame,
    StepRecord,
    Table,
    merge,
)
from vario.rules.api.series_state import Departure, Deviation, Flags, Last, Memory, Trend, Values

STATISTICS: dict[str, Callable[[Table], Values]] = {
    "rms": lambda rows: np.sqrt(rows[:, SUM_SQUARES] / rows[:, COUNT]),
    "norm": lambda rows: np.sqrt(rows[:, SUM_SQUARES]),
    "mean": lambda rows: rows[:, SUM] / rows[:, COUNT],
    "min": lambda rows: rows[:, MIN],
    "max": lambda rows: rows[:, MAX],
    "absmax": lambda rows: np.maximum(np.abs(rows[:, MIN]), np.abs(rows[:, MAX])),
    "zeros": lambda rows: rows[:, ZEROS] / rows[:, COUNT],
    "bad": lambda rows: rows[:, NANS] + rows[:, INFS],
}
"""What rules ask for; NaN where a column was not recorded. `zeros` is a share."""

SCALARS = "scalar"


Parts = dict[tuple[str, str], tuple[tuple[str, ...], npt.NDArray[np.int64], tuple[str, ...]]]
"""Where the rows of each part of a quantity were the last time: they seldom move."""

_NOWHERE = np.zeros(0, np.int64)
_NOTHING = np.zeros(0)


@dataclass(frozen=True)
class Rows:
    """All rows of one quantity in one step."""

    quantity: str
    targets: tuple[str, ...]
    order: npt.NDArray[np.int32]
    summaries: Table

    def __len__(self) -> int:
        return len(self.targets)

    def statistic(self, name: str) -> Values:
        """One number per row."""
        if not self.targets:
            return _NOTHING
        with np.errstate(all="ignore"):
            return STATISTICS[name](self.summaries)

    def part(self, suffix: str, known: Parts) -> Rows:
        """Only the rows whose name ends in `:suffix`, under the name before it; `known` is from the steps before."""
        if not self.targets:
            return self
        whole, at, names = known.get((self.quantity, suffix), ((), _NOWHERE, ()))
        if whole != self.targets:
            ending = f":{suffix}"
            at = np.array([index for index, name in enumerate(self.targets) if name.endswith(ending)], np.int64)
            names = tuple(self.targets[index].removesuffix(ending) for index in at)
            known[self.quantity, suffix] = self.targets, at, names
        return Rows(self.quantity, names, self.order[at], self.summaries[at])


@cache
def _no_rows(quantity: str) -> Rows:
    return Rows(quantity, (), np.zeros(0, np.int32), np.zeros((0, len(COLUMNS))))


@dataclass(frozen=True)
class Facts:
    """What is known of a rank before its first step."""

    rank: int = 0
    world_size: int = 1
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Of each parameter."""
    dtypes: Mapping[str, str] = field(default_factory=dict)
    trainable: frozenset[str] = frozenset()
    replicated: frozenset[str] = frozenset()
    """Parameters that other ranks hold as well: what is wrong with them is no single rank's business."""
    embeddings: frozenset[str] = frozenset()
    """Parameters of embeddings: what reaches them is decided by the rows of the batch."""
    coordinates: Mapping[str, int] = field(default_factory=dict)
    """Where the rank stands in the mesh."""
    columns: frozenset[str] = frozenset(COLUMNS)
    """The columns of a Summary that are recorded."""

    @classmethod
    def read(cls, rank: int, world_size: int, structure: Mapping[str, Any], **others: Any) -> Facts:
        """From what `structure.json` holds."""
        parameters = structure.get("parameters") or []
        return cls(
            rank=rank,
            world_size=world_size,
            shapes={found["name"]: tuple(found.get("shape") or ()) for found in parameters},
            dtypes={found["name"]: str(found.get("dtype") or "") for found in parameters},
            trainable=frozenset(found["name"] for found in parameters if found.get("trainable", True)),
            replicated=frozenset(found["name"] for found in parameters if len(_replicas(found, structure)) > 1),
            embeddings=_embeddings(structure),
            **others,
        )

    def are_matrices(self, targets: Sequence[str]) -> Flags:
        """Which targets are parameters of two dimensions and more; all, where no shape is known."""
        if not self.shapes:
            return np.ones(len(targets), np.bool_)
        names = tuple(targets)
        if names not in self._matrices:
            if len(self._matrices) > 32:
                self._matrices.clear()
            self._matrices[names] = np.array([len(self.shapes.get(name, ())) > 1 for name in names], np.bool_)
        return self._matrices[names]

    @cached_property
    def _matrices(self) -> dict[tuple[str, ...], Flags]:
        return {}

    @cached_property
    def is_half(self) -> bool:
        """Whether any parameter is kept in float16."""
        return any("float16" in dtype and "bfloat16" not in dtype for dtype in self.dtypes.values())


def _embeddings(structure: Mapping[str, Any]) -> frozenset[str]:
    modules = structure.get("modules") or []
    names = {found["name"] for found in modules if "Embedding" in str(found.get("class"))}
    parameters = (found["name"] for found in structure.get("parameters") or [])
    return frozenset(name for name in parameters if name.rpartition(".")[0] in names)


def _replicas(parameter: Mapping[str, Any], structure: Mapping[str, Any]) -> Sequence[int]:
    found = parameter.get("replicas")
    if isinstance(found, int):
        return list((structure.get("groups") or [])[found])
    return found or []


class Step:
    """One complete step of one rank."""

    def __init__(
        self,
        number: int,
        time: float,
        scalars: Mapping[str, float],
        frames: Sequence[Frame],
        facts: Facts,
        memory: Memory,
    ) -> None:
        self.number = number
        self.time = time
        """Unix seconds when it ended."""
        self.scalars = scalars
        self.frames = frames
        """As recorded, micro-steps apart."""
        self.facts = facts
        self.memory = memory
        self.quantities = {frame.quantity for frame in frames}
        self._rows: dict[str, Rows] = {}
        self._parts: dict[tuple[str, str], Rows] = {}
        self._deviations: dict[str, Deviation | None] = {}
        self._departures: dict[str, Departure | None] = {}

    @property
    def was_skipped(self) -> bool:
        """Whether a loss scaler held the update back: infinite gradients are its business."""
        return self.scalars.get("skipped_step", 0.0) > 0

    @cached_property
    def has_new_optimizer(self) -> bool:
        """Whether an optimizer updates for the first time: it begins without state, at a rate of its own."""
        numbers = {name.split("/")[1] for name in self.scalars if name.startswith("setting/")}
        found = tuple(number for number in numbers if number.isdigit())
        if not found:
            return False
        before, _ = self.memory.get("optimizers", Last()).swap(found, np.ones(len(found)), self.number)
        return bool(np.isnan(before).any())

    @cached_property
    def is_warming_up(self) -> bool:
        """Whether the learning rate is higher than ever: what a model does then is no habit yet."""
        rate = self.scalars.get("lr")
        if rate is None:
            return False
        last = self.memory.get("warm-up", Last())
        before = last.read("value", ("peak",))[0]
        last.swap(("peak",), np.array([np.fmax(before, rate)]), self.number)
        return not rate <= before

    def rows(self, quantity: str, part: str = "") -> Rows:
        """All rows of a quantity, or those named `...:part`; none where it was not watched in this step."""
        if quantity not in self.quantities:
            return _no_rows(quantity)
        if quantity not in self._rows:
            self._rows[quantity] = _merge([frame for frame in self.frames if frame.quantity == quantity], quantity)
        if not part:
            return self._rows[quantity]
        if (quantity, part) not in self._parts:
            self._parts[quantity, part] = self._rows[quantity].part(part, self.memory.parts)
        return self._parts[quantity, part]

    def trend(
        self, quantity: str, statistic: str, part: str = "", *, linear: bool = False, floor: float = 0.02
    ) -> Deviation | None:
        """How a statistic of every target compares with its own past; None where the quantity was not watched.

        Rules that ask for the same share it, and it learns from a step once.
        """
        if quantity not in self.quantities:
            return None
        name = f"{quantity}:{part} {statistic}"
        if name not in self._deviations:
            rows = self.rows(quantity, part)
            found = None
            if len(rows):
                found = self.memory.get(name, Trend(linear, floor)).update(
                    rows.targets, rows.statistic(statistic), self.number
                )
            self._deviations[name] = found
        return self._deviations[name]

    def scalar_trend(self, name: str, *, linear: bool = False, floor: float = 0.02) -> Departure | None:
        """How a plain number compares with its own past; None where none was logged in this step, or no finite one."""
        if name not in self.scalars:
            return None
        if name not in self._departures:
            trend = self.memory.get(f"{SCALARS}:{name}", Trend(linear, floor))
            self._departures[name] = trend.follow(name, self.scalars[name], self.number)
        return self._departures[name]

    @cached_property
    def loss(self) -> tuple[str, Departure] | None:
        """The loss, by its name, and how it compares with its own past: as logged, or else as found."""
        known = ((name, self.scalar_trend(name, linear=True, floor=1e-6)) for name in LOSSES)
        return next(((name, found) for name, found in known if found is not None), None)


def _merge(frames: Sequence[Frame], quantity: str) -> Rows:
    if len(frames) == 1:
        frame = frames[0]
        return Rows(quantity, tuple(frame.targets), frame.order, frame.summaries)
    if not frames:
        return _no_rows(quantity)
    rows: dict[str, int] = {}
    groups = np.array([rows.setdefault(name, len(rows)) for frame in frames for name in frame.targets], np.int64)
    order = np.full(len(rows), np.iinfo(np.int32).max, np.int32)
    np.minimum.at(order, groups, np.concatenate([frame.order for frame in frames]))
    merged = merge(np.concatenate([frame.summaries for frame in frames]), groups, len(rows))
    return Rows(quantity, tuple(rows), order, merged)


class StepAssembler:
    """Puts the records of a step together: it is complete when the next one begins."""

    def __init__(self, facts: Facts, memory: Memory) -> None:
        self._facts = facts
        self._memory = memory
        self._missing = [at for at, name in enumerate(COLUMNS) if name not in facts.columns]
        self._waiting: list[StepRecord] = []

    def add(self, record: StepRecord) -> Iterator[Step]:
        """Take a record; the step before it, if that is complete now."""
        if self._waiting and record.step != self._waiting[-1].step:
            yield from self.flush()
        self._waiting.append(record)

    def flush(self) -> Iterator[Step]:
        """The step in progress, as far as it is known."""
        records, self._waiting = self._waiting, []
        if records:
            number = records[-1].step
            # What an asynchronous collective brought late belongs to a step that was looked at already.
            frames = [frame for record in records for frame in record.frames if frame.step == number]
            scalars: dict[str, float] = {}
            for record in records:
                scalars.update(record.scalars.values)
            yield Step(
                number, records[-1].scalars.time, scalars, list(self._blanked(frames)), self._facts, self._memory
            )

    def _blanked(self, frames: Iterable[Frame]) -> Iterator[Frame]:
        """Columns that nobody asked for hold nothing to rely on."""
        for frame in frames:
            if self._missing:
                summaries = frame.summaries.copy()
                summaries[:, self._missing] = np.nan
                frame = Frame(frame.quantity, frame.step, frame.micro_step, frame.targets, frame.order, summaries)
            yield frame


@dataclass(frozen=True)
class RanksStep:
    """The same step on several ranks that can be compared with each other."""

    number: int
    steps: Mapping[int, Step]
    memory: Memory
    alike: Callable[[str, int], Sequence[int]] = lambda target, rank: [rank]
    """The ranks that hold the same of a parameter as this one."""

    @property
    def ranks(self) -> list[int]:
        """Their numbers, in order."""
        return sorted(self.steps)

    def table(self, quantity: str, statistic: str, part: str = "") -> tuple[tuple[str, ...], Values]:
        """Targets that every rank has, and a number per (rank, target)."""
        rows = [self.steps[rank].rows(quantity, part) for rank in self.ranks]
        first = rows[0].targets
        if all(found.targets == first for found in rows):
            return first, np.stack([found.statistic(statistic) for found in rows])
        common = [name for name in first if all(name in found.targets for found in rows[1:])]
        columns = [found.statistic(statistic)[[found.targets.index(name) for name in common]] for found in rows]
        return tuple(common), np.stack(columns) if common else np.zeros((len(rows), 0))
