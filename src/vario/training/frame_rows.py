"""Rows before they become Frames: those of a step, those kept from elsewhere, and those that move to another step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from vario.backends.protocols.observing import LateBins, LateRows, Named
from vario.core.elements.bins import BinTable
from vario.core.quantities import GRADIENT_NORM
from vario.core.records import (
    COLUMNS,
    COUNT,
    MAX,
    MIN,
    SUM,
    SUM_SQUARES,
    Collective,
    Frame,
    Scalars,
    StepId,
    StepRecord,
    Table,
    TensorSpec,
    merge,
)

Seen = tuple[int, int] | list[int]
"""Row and order of each observation of a target: a tuple of two for one, a flat list for several."""
Rows = dict[str, Seen]
"""The observations, by target."""


@dataclass(eq=False)
class RowDetails:
    """What is known of a step's rows besides their Summaries."""

    specs: dict[int, TensorSpec] = field(default_factory=dict)
    bins: Callable[[], BinTable] | None = None
    """Returns the distributions of rows, once the step's rows were handed over; None if there are none."""

    def stored_bins(self, rows: Sequence[int], groups: npt.NDArray[np.int64] | None = None) -> list[bytes] | None:
        """Return the distributions of rows, for a Frame."""
        return None if self.bins is None else self.bins().stored(rows, groups)


def add_row(rows: Rows, target: str, row: int, order: int) -> None:
    """Add an observation of a target."""
    before = rows.get(target)
    if before is None:
        rows[target] = row, order
    elif isinstance(before, list):
        before += row, order
    else:
        rows[target] = [*before, row, order]


def add_rows(rows: Rows, named: Named, numbers: Sequence[int | None]) -> None:
    """Add the observations of a list of tensors; for targets that are all new no Python code runs per target."""
    _, targets, tensors, places = named
    found = [numbers[tensor] for tensor in tensors]
    if None not in found and rows.keys().isdisjoint(targets) and len(set(targets)) == len(targets):
        rows.update(zip(targets, zip(found, places, strict=True), strict=True))  # type: ignore[arg-type]
        return
    for target, row, place in zip(targets, found, places, strict=True):
        if row is not None:
            add_row(rows, target, row, place)


def copied(rows: Rows) -> Rows:
    """Return a copy to which rows can be added."""
    return {target: list(seen) for target, seen in rows.items()}


def list_number(known: list[Sequence[str]], targets: Sequence[str]) -> int:
    """Return the position of a list of targets among the known ones; a new one is added to them."""
    for number, names in enumerate(known):
        if names is targets or names == targets:
            return number
    known.append(targets)
    return len(known) - 1


@dataclass(frozen=True)
class Listed:
    """A list of tensors that were reduced together. Nothing is kept per tensor until one is needed on its own."""

    targets: Sequence[str]
    rows: Sequence[int]
    first_order: int

    def unfold(self) -> Rows:
        """Return the observations, by target."""
        orders = range(self.first_order, self.first_order + len(self.rows))
        return dict(zip(self.targets, zip(self.rows, orders, strict=True), strict=True))

    def summaries(self, table: Table) -> Table:
        """Return its rows of a step's table."""
        rows = self.rows
        return table[rows.start : rows.stop] if isinstance(rows, range) else table[list(rows)]

    def build(self, quantity: str, step: int, table: Table, details: RowDetails) -> Frame:
        """Return its Frame. Targets that are the same tuple in each step stay that tuple: comparing them is free."""
        summaries = self.summaries(table)
        if np.isnan(summaries[:, COUNT]).any():
            return _frame(quantity, step, 0, self.unfold(), table, details)
        order = np.arange(self.first_order, self.first_order + len(self.rows), dtype=np.int32)
        bins = details.stored_bins(self.rows)
        return Frame(quantity, step, 0, tuple(self.targets), order, summaries, detail=bins)


class MergedSummary:
    """A Summary that was computed elsewhere; later ones of the same target are merged into it."""

    def __init__(self, summary: list[float], order: int, spec: TensorSpec | None) -> None:
        self.summary = summary
        self.order = order
        self.spec = spec

    def add(self, other: list[float]) -> None:
        """Merge another Summary into this one."""
        merged = [mine + theirs for mine, theirs in zip(self.summary, other, strict=True)]
        # NaN means "no finite element seen" and gives way to a number.
        merged[MIN], merged[MAX] = (
            float(fold(self.summary[at], other[at])) for at, fold in ((MIN, np.fmin), (MAX, np.fmax))
        )
        self.summary = merged


@dataclass(eq=False)
class HeldRows:
    """Rows taken out of a step: they may come back later in the step, or belong to the next one."""

    frames: dict[tuple[str, int], Rows]
    details: RowDetails
    fetch: Callable[[], Table] | None = None
    """Returns the table of the rows, once the step's rows were handed over."""

    def pick(self, key: tuple[str, int], targets: Iterable[str]) -> HeldRows | None:
        """Some rows of one frame that leave this step."""
        rows = self.frames.get(key, {})
        picked = {target: rows.pop(target) for target in list(targets) if target in rows}
        return HeldRows({key: picked}, self.details, self.fetch) if picked else None

    def build(self, step: int) -> list[Frame]:
        """Return the rows as Frames of a step; waits for the device."""
        return [] if self.fetch is None else build_frames(self.frames, step, self.fetch(), self.details)


def divided(rows: Rows, first: int) -> tuple[Rows, Rows]:
    """Split the observations into those before this place in the order and the rest."""
    before: Rows = {}
    since: Rows = {}
    for target, seen in rows.items():
        for row, order in zip(seen[::2], seen[1::2], strict=True):
            add_row(before if order < first else since, target, row, order)
    return before, since


def put_rows(frames: dict[tuple[str, int], Rows], key: tuple[str, int], rows: Rows) -> None:
    """Replace the rows of a frame, which goes if there are none."""
    if rows:
        frames[key] = rows
    else:
        del frames[key]


def norm_of_gradients(
    frames: Mapping[tuple[str, int], Rows], listed: Mapping[str, Listed], table: Table
) -> dict[str, float]:
    """Return the norm of all gradients of a step as a plain number; empty if the step has none."""
    if "gradient" in listed:
        return {GRADIENT_NORM: _norm(listed["gradient"].summaries(table))}
    rows = frames.get(("gradient", 0))
    return {GRADIENT_NORM: _norm(table[[seen[0] for seen in rows.values()]])} if rows else {}


def _norm(summaries: Table) -> float:
    return float(np.sqrt(np.ascontiguousarray(summaries[:, SUM_SQUARES]).sum()))


_NO_LISTS: Mapping[str, Listed] = {}

Conditional = tuple[str, Sequence[str], Sequence[int | None], Callable[[float], bool]]
"""A quantity, its targets and their rows, kept only if the norm of all is wanted."""


def add_if_wanted(
    conditional: Conditional, table: Table, scalars: dict[str, float], frames: dict[tuple[str, int], Rows]
) -> None:
    """Log the norm, and keep the rows if the norm is wanted."""
    quantity, targets, numbers, is_wanted = conditional
    rows: Rows = {
        name: (row, at) for at, (name, row) in enumerate(zip(targets, numbers, strict=True)) if row is not None
    }
    scalars[GRADIENT_NORM] = norm = _norm(table[[seen[0] for seen in rows.values()]])
    if is_wanted(norm):
        frames[quantity, 0] = rows


def build_frames(
    frames: dict[tuple[str, int], Rows],
    step: int,
    table: Table,
    details: RowDetails,
    listed: Mapping[str, Listed] = _NO_LISTS,
) -> list[Frame]:
    """Return one Frame per quantity and micro-step with rows, observed one by one or as a list."""
    found = []
    for (quantity, micro_step), rows in frames.items():
        if rows:
            found.append(_frame(quantity, step, micro_step, rows, table, details))
        elif quantity in listed and micro_step == 0:
            found.append(listed[quantity].build(quantity, step, table, details))
    return found


Late = tuple[str, int, LateRows, LateBins | None]
"""A quantity, the first place of its rows in the step's order, the rows, and their distributions."""


def build_late(late: list[Late], step: int) -> list[Frame]:
    """Return the Frames of late rows, one per quantity; none for a quantity without rows."""
    found: dict[str, list[tuple[Sequence[str], npt.NDArray[np.int32], Table]]] = {}
    bins: dict[str, dict[str, bytes]] = {}
    for quantity, first, make, counted in late:
        targets, table = make()
        if counted is not None and targets:
            bins.setdefault(quantity, {}).update(counted())
        if targets:
            order = np.arange(first, first + len(targets), dtype=np.int32)
            found.setdefault(quantity, []).append((targets, order, table))
    frames = [Frame(quantity, step, 0, *_joined(parts)) for quantity, parts in found.items()]
    return [_with_bins(frame, bins[frame.quantity]) if bins.get(frame.quantity) else frame for frame in frames]


def _with_bins(frame: Frame, bins: Mapping[str, bytes]) -> Frame:
    return replace(frame, detail=[bins.get(target, b"") for target in frame.targets])


def _joined(
    parts: list[tuple[Sequence[str], npt.NDArray[np.int32], Table]],
) -> tuple[Sequence[str], npt.NDArray[np.int32], Table]:
    """Return all rows; if a target occurs twice, the last one."""
    targets = tuple(target for part in parts for target in part[0])
    order = np.concatenate([part[1] for part in parts])
    table = np.concatenate([part[2] for part in parts])
    last = {target: at for at, target in enumerate(targets)}
    if len(last) < len(targets):
        places = list(last.values())
        return tuple(last), order[places], table[places]
    return targets, order, table


def build_others(
    kept: dict[tuple[str, StepId], dict[str, MergedSummary]],
    placed: dict[tuple[str, StepId], Rows],
    table: Table,
    details: RowDetails,
) -> list[Frame]:
    """Return the Frames of observations that belong to their own step, this one or an earlier one."""
    frames = [_frame(quantity, *step_id, rows, table, details) for (quantity, step_id), rows in placed.items()]
    for (quantity, step_id), found in kept.items():
        rows = list(found.values())
        order = np.array([row.order for row in rows], dtype=np.int32)
        summaries = np.array([row.summary for row in rows], dtype=np.float64).reshape(-1, len(COLUMNS))
        described = [row.spec for row in rows if row.spec is not None]
        frames.append(
            Frame(
                quantity, *step_id, tuple(found), order, summaries, described if len(described) == len(rows) else None
            )
        )
    return frames


def _frame(quantity: str, step: int, micro_step: int, rows: Rows, table: Table, details: RowDetails) -> Frame:
    targets = tuple(rows)
    order = np.array([seen[1] for seen in rows.values()], dtype=np.int32)
    sizes = list(map(len, rows.values()))
    picked = [row for seen in rows.values() for row in seen[::2]]
    groups = None
    if max(sizes) == 2:
        summaries = table[picked]
    else:
        groups = np.repeat(np.arange(len(targets)), [size // 2 for size in sizes])
        summaries = merge(table[picked], groups, len(targets))
    bins = details.stored_bins(picked, groups)
    if np.isnan(summaries[:, COUNT]).any():
        # A compiled graph did not get as far as their tensors.
        lost = np.isnan(summaries[:, COUNT])
        rows = {
            target: seen for (target, seen), is_lost in zip(rows.items(), lost.tolist(), strict=True) if not is_lost
        }
        targets, order, summaries = tuple(rows), order[~lost], summaries[~lost]
        bins = bins and [row for row, is_lost in zip(bins, lost.tolist(), strict=True) if not is_lost]
    described = [details.specs[seen[0]] for seen in rows.values()] if details.specs else None
    return Frame(quantity, step, micro_step, targets, order, summaries, described, bins)


@dataclass(eq=False, slots=True)
class EndedStep:
    """Everything that one step has observed."""

    step: int
    time: float
    fetch: Callable[[], Table]
    frames: dict[tuple[str, int], Rows]
    listed: dict[str, Listed]
    details: RowDetails
    kept: dict[tuple[str, StepId], dict[str, MergedSummary]]
    placed: dict[tuple[str, StepId], Rows]
    late: list[Late]
    returned: list[HeldRows]
    conditional: Conditional | None
    collectives: list[Collective]
    scalars: dict[str, float]
    later_scalars: dict[str, int]
    """Plain numbers that are rows of the table."""
    scalar_calls: list[Callable[[dict[str, float]], None]]
    keeps_norm: bool
    derivations: Sequence[Callable[[Sequence[Frame], dict[str, float]], None]]

    def build(self) -> StepRecord:
        """Wait for the device and return the record, on any thread."""
        table, scalars = self.fetch(), self.scalars
        for name, row in self.later_scalars.items():
            scalars[name] = float(table[row, SUM])
        for fill in self.scalar_calls:
            fill(scalars)
        if self.conditional is not None:
            add_if_wanted(self.conditional, table, scalars, self.frames)
        elif self.keeps_norm and self.frames:
            scalars.update(norm_of_gradients(self.frames, self.listed, table))
        found: list[Frame] = []
        if self.frames or self.kept or self.placed or self.late or self.returned:
            found += build_frames(self.frames, self.step, table, self.details, self.listed)
            found += build_others(self.kept, self.placed, table, self.details)
            found += build_late(self.late, self.step)
            found += [frame for part in self.returned for frame in part.build(self.step)]
        for derive in self.derivations:
            derive(found, scalars)
        return StepRecord(self.step, found, Scalars(self.step, self.time, scalars), self.collectives)
