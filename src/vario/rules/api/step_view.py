"""The view of a step that rules get: all rows of one rank, micro-steps merged, and its plain numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from vario.core.elements.bins import Counts, merge_bins
from vario.core.parameter_list import by_kind
from vario.core.quantities import LOSSES
from vario.core.records import COLUMNS, Frame, Table, merge
from vario.rules.api.masks import are_ids
from vario.rules.api.series_state import Departure, Deviation, Flags, Last, Memory, Trend, Values
from vario.statistics import STATISTICS

SCALARS = "scalar"
INTERVALS = "detector intervals"
"""Where the detector remembers how often each quantity is watched."""

BRIEF_SECONDS = 1e-3

SPENT = 1e-3
"""Below this share of its highest value the learning rate hardly moves the weights."""

Parts = dict[tuple[str, str], tuple[tuple[str, ...], npt.NDArray[np.int64], tuple[str, ...]]]
"""Where the rows of each part of a quantity were last time: they rarely move."""

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
        """Return one number per row; NaN where a column was not recorded."""
        return STATISTICS.get(name)(self.summaries) if self.targets else _NOTHING

    def part(self, suffix: str, known: Parts) -> Rows:
        """Return the rows whose name ends in `:suffix`, without that suffix; `known` caches their positions."""
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
    """What is known about a rank before its first step."""

    rank: int = 0
    world_size: int = 1
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The shape of each parameter."""
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """Of each parameter, without the name of a package."""
    trainable: Set[str] = frozenset()
    replicated: frozenset[str] = frozenset()
    """Parameters that other ranks have too: a problem with them is not specific to one rank."""
    embeddings: frozenset[str] = frozenset()
    """Parameters of embeddings: the batch decides which rows get a gradient."""
    coordinates: Mapping[str, int] = field(default_factory=dict)
    """The rank's coordinates in the device mesh."""
    columns: frozenset[str] = frozenset(COLUMNS)
    """The columns of a Summary that are recorded."""

    @classmethod
    def read(cls, rank: int, world_size: int, structure: Mapping[str, Any], **others: Any) -> Facts:
        """Build from the content of `structure.json`."""
        shapes: dict[str, tuple[int, ...]] = {}
        dtypes: dict[str, str] = {}
        frozen: set[str] = set()
        replicated: set[str] = set()
        for names, kind in by_kind(structure.get("parameters") or ()):
            shapes.update(dict.fromkeys(names, tuple(kind.get("shape") or ())))
            dtypes.update(dict.fromkeys(names, str(kind.get("dtype") or "").rpartition(".")[2]))
            if not kind.get("trainable", True):
                frozen.update(names)
            if len(_replicas(kind, structure)) > 1:
                replicated.update(names)
        return cls(
            rank=rank,
            world_size=world_size,
            shapes=shapes,
            dtypes=dtypes,
            # Not listed a third time if there are very many.
            trainable=frozenset(shapes.keys() - frozen) if frozen else shapes.keys(),
            replicated=frozenset(replicated),
            embeddings=_embeddings(structure),
            **others,
        )

    def are_matrices(self, targets: Sequence[str]) -> Flags:
        """Flag the targets that are parameters with two or more dimensions; all, if no shapes are known."""
        if not self.shapes:
            return np.ones(len(targets), np.bool_)
        names = tuple(targets)
        if names not in self._matrices:
            if len(self._matrices) > 32:
                self._matrices.clear()
            self._matrices[names] = np.array([len(self.shapes.get(name, ())) > 1 for name in names], np.bool_)
        return self._matrices[names]

    def are_larger(self, targets: Sequence[str], count: int) -> Flags:
        """Flag parameters with at least so many elements; all that have no known shape."""
        return np.array([math.prod(self.shapes.get(name, (count,))) >= count for name in targets], np.bool_)

    def are_embeddings(self, targets: Sequence[str]) -> Flags:
        """Flag the parameters of embeddings."""
        return np.array([name in self.embeddings for name in targets], np.bool_)

    def are_indices(self, targets: Sequence[str], summaries: Table) -> Flags:
        """Flag activations that are ids of tokens or positions: they have no magnitude to compare."""
        return are_ids(targets, summaries, self._lookups)

    @cached_property
    def _lookups(self) -> tuple[str, ...]:
        return tuple(f"{name.rpartition('.')[0]}:input" for name in sorted(self.embeddings))

    @cached_property
    def _matrices(self) -> dict[tuple[str, ...], Flags]:
        return {}

    @cached_property
    def is_half(self) -> bool:
        """Whether any parameter is float16."""
        return any("float16" in dtype and "bfloat16" not in dtype for dtype in self.dtypes.values())


def _embeddings(structure: Mapping[str, Any]) -> frozenset[str]:
    modules = structure.get("modules") or []
    names = {found["name"] for found in modules if "Embedding" in str(found.get("class"))}
    if not names:
        return frozenset()
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
        """Unix time at the end of the step."""
        self.scalars = scalars
        self.frames = frames
        """As recorded, one per micro-step."""
        self.facts = facts
        self.memory = memory
        self.quantities = {frame.quantity for frame in frames}
        self._rows: dict[str, Rows] = {}
        self._parts: dict[tuple[str, str], Rows] = {}
        self._deviations: dict[str, Deviation | None] = {}
        self._departures: dict[str, Departure | None] = {}
        self._loss: tuple[str, Departure] | None = None
        self._has_loss = any(name in scalars for name in LOSSES)

    @property
    def is_one_of_many(self) -> bool:
        """Whether a rule that looks for lasting changes may leave this step to the next ones.

        Steps of plain numbers alone come fast: one in four is enough.
        """
        return not self.frames and self.number % 4 != 0

    @property
    def is_brief(self) -> bool:
        """Whether the step took so little time that three more of its kind will be there in a few milliseconds."""
        return self.scalars.get("step_seconds", BRIEF_SECONDS) < BRIEF_SECONDS

    def is_unusual(self, name: str, spreads: float = 4.0) -> bool:
        """Whether a loss is not finite, not known, or far from its usual value; nothing is learned from it."""
        trend = self.memory.find(f"{SCALARS}:{name}", Trend)
        return trend is None or not trend.is_within(name, self.scalars[name], spreads)

    @property
    def was_skipped(self) -> bool:
        """Whether a loss scaler skipped the update: it deals with infinite gradients itself."""
        return self.scalars.get("skipped_step", 0.0) > 0

    @property
    def has_nothing_to_learn(self) -> bool:
        """Whether a loss of this step is exactly zero, as a margin's is that every row keeps: so is every gradient."""
        return any(self.scalars.get(name) == 0 for name in LOSSES)

    def interval(self, quantity: str) -> int:
        """Steps since the quantity was watched before this step; 1 if every step is watched, or it is not known."""
        found = self.memory.get(INTERVALS, Last).read("value", (quantity,))[0]
        return 1 if np.isnan(found) else max(1, int(found))

    def has_looked(self, quantity: str, since: int) -> bool:
        """Whether a quantity was watched in any step from `since` to this one."""
        return bool(self.memory.get(INTERVALS, Last).read("step", (quantity,))[0] >= since)

    def looks_for(self, quantity: str, steps: int) -> int:
        """Return how many looks at a quantity span this many steps; three at least, or as many as there are steps."""
        return min(steps, max(3, math.ceil(steps / self.interval(quantity))))

    def looks_ago(self, quantity: str, looks: int) -> int:
        """Return about the step of the first of the last few looks at a quantity, this one included."""
        return max(0, self.number - (looks - 1) * self.interval(quantity))

    @cached_property
    def has_new_optimizer(self) -> bool:
        """Whether an optimizer makes its first update: it starts without state, at its own learning rate."""
        numbers = {name.split("/")[1] for name in self.scalars if name.startswith("setting/")}
        found = tuple(number for number in numbers if number.isdigit())
        if not found:
            return False
        before, _ = self.memory.get("optimizers", Last).swap(found, np.ones(len(found)), self.number)
        return bool(np.isnan(before).any())

    @cached_property
    def is_scheduled(self) -> bool:
        """Whether a scheduler of the framework sets the learning rate; it is logged when that changes."""
        memory = self.memory.get("lr_change scheduled", Last)
        if (now := self.scalars.get("lr_scheduled")) is not None:
            memory.swap_one("lr", now, self.number)
        return memory.one("value", "lr") == 1

    @cached_property
    def is_warming_up(self) -> bool:
        """Whether the learning rate is at a new maximum: the model's behaviour has not settled yet."""
        rate = self.scalars.get("lr")
        if rate is None:
            return False
        last = self.memory.get("warm-up", Last)
        before = last.read("value", ("peak",))[0]
        last.swap(("peak",), np.array([np.fmax(before, rate)]), self.number)
        return not rate <= before

    @property
    def is_rate_spent(self) -> bool:
        """Whether a schedule has brought the learning rate close to zero: updates that round to zero are expected."""
        rate = self.scalars.get("lr")
        if rate is None or self.is_warming_up:
            return False
        return rate < SPENT * self.memory.get("warm-up", Last).one("value", "peak")

    def rows(self, quantity: str, part: str = "") -> Rows:
        """Return all rows of a quantity, or those named `...:part`; none if it was not watched in this step."""
        if quantity not in self.quantities:
            return _no_rows(quantity)
        if quantity not in self._rows:
            self._rows[quantity] = _merge([frame for frame in self.frames if frame.quantity == quantity], quantity)
        if not part:
            return self._rows[quantity]
        if (quantity, part) not in self._parts:
            self._parts[quantity, part] = self._rows[quantity].part(part, self.memory.parts)
        return self._parts[quantity, part]

    def distributions(self, quantity: str) -> tuple[tuple[str, ...], Counts]:
        """Return the targets of a quantity that have distributions in this step, and these, micro-steps added up."""
        names: dict[str, int] = {}
        stored: list[bytes] = []
        groups: list[int] = []
        for frame in self.frames:
            if frame.quantity == quantity and frame.detail is not None:
                for target, row in zip(frame.targets, frame.detail, strict=True):
                    if row:
                        groups.append(names.setdefault(target, len(names)))
                        stored.append(row)
        return tuple(names), merge_bins(stored, np.array(groups, np.int64), len(names))

    def trend(
        self, quantity: str, statistic: str, part: str = "", *, linear: bool = False, floor: float = 0.02
    ) -> Deviation | None:
        """Compare a statistic of every target with its own past; None if the quantity was not watched.

        Rules that ask for the same trend share it, and it learns from each step once.
        """
        if quantity not in self.quantities:
            return None
        name = f"{quantity}:{part} {statistic}"
        if name not in self._deviations:
            rows = self.rows(quantity, part)
            found = None
            if len(rows):
                trend = self.memory.find(name, Trend) or self.memory.get(name, Trend(linear, floor))
                found = trend.update(rows.targets, rows.statistic(statistic), self.number)
            self._deviations[name] = found
        return self._deviations[name]

    def scalar_trend(self, name: str, *, linear: bool = False, floor: float = 0.02) -> Departure | None:
        """Compare a plain number with its own past; None if it was not logged in this step or is not finite."""
        if name not in self.scalars:
            return None
        if name not in self._departures:
            key = f"{SCALARS}:{name}"
            trend = self.memory.find(key, Trend) or self.memory.get(key, Trend(linear, floor))
            self._departures[name] = trend.follow(name, self.scalars[name], self.number)
        return self._departures[name]

    @property
    def latest_loss(self) -> float:
        """The recent mean of the loss, in this step or the last that had one; NaN if none had."""
        if self.loss is not None:
            return self.loss[1].fast
        for name in LOSSES:
            if (trend := self.memory.find(f"{SCALARS}:{name}", Trend)) is not None:
                return trend.latest(name)
        return math.nan

    @property
    def loss(self) -> tuple[str, Departure] | None:
        """The loss's name and how it compares with its own past: the logged loss, or else the one vario found."""
        if self._has_loss:
            self._has_loss = False  # looked up once
            for name in LOSSES:
                if (found := self.scalar_trend(name, linear=True, floor=1e-6)) is not None:
                    self._loss = name, found
                    break
        return self._loss


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


@dataclass(frozen=True)
class RanksStep:
    """The same step on several comparable ranks."""

    number: int
    steps: Mapping[int, Step]
    memory: Memory
    alike: Callable[[str, int], Sequence[int]] = lambda target, rank: [rank]
    """The ranks with the same part of a parameter as this one."""

    @property
    def ranks(self) -> list[int]:
        """Their numbers, in order."""
        return sorted(self.steps)

    def table(self, quantity: str, statistic: str, part: str = "") -> tuple[tuple[str, ...], Values]:
        """Return the targets that every rank has, and a number per (rank, target)."""
        rows = [self.steps[rank].rows(quantity, part) for rank in self.ranks]
        first = rows[0].targets
        if all(found.targets == first for found in rows):
            return first, np.stack([found.statistic(statistic) for found in rows])
        common = [name for name in first if all(name in found.targets for found in rows[1:])]
        columns = [found.statistic(statistic)[[found.targets.index(name) for name in common]] for found in rows]
        return tuple(common), np.stack(columns) if common else np.zeros((len(rows), 0))
