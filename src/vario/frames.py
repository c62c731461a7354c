"""The rows of the step in progress: what was observed, when, and how it becomes Frames."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from vario.backends.base import LateRows, Summaries, Tensor
from vario.records import (
    COLUMNS,
    MAX,
    MIN,
    SUM,
    Collective,
    Form,
    Frame,
    Moment,
    Scalars,
    StepRecord,
    Table,
    merge,
)

Rows = dict[str, list[tuple[int, int]]]
"""Per target: (row, order) of each observation."""


class _Kept:
    """A Summary that was made elsewhere; later ones of the same target are merged into it."""

    def __init__(self, summary: list[float], order: int, form: Form | None) -> None:
        self.summary = summary
        self.order = order
        self.form = form

    def add(self, other: list[float]) -> None:
        merged = [mine + theirs for mine, theirs in zip(self.summary, other, strict=True)]
        # A NaN stands for "no finite element seen" and gives way to a number.
        merged[MIN], merged[MAX] = (
            float(fold(self.summary[at], other[at])) for at, fold in ((MIN, np.fmin), (MAX, np.fmax))
        )
        self.summary = merged


class StepFrames:
    """Collects one step's observations; `end` hands them over and starts afresh."""

    def __init__(
        self,
        summaries: Summaries,
        skipped: Callable[[str, str, Tensor], None],
        describe: Callable[[Tensor], Form] | None = None,
    ) -> None:
        """`skipped` is told the quantity, target and tensor whenever a tensor has no numbers to reduce.

        With `describe` each Frame also says what shape and dtype its tensors had.
        """
        self._summaries = summaries
        self._skipped = skipped
        self._describe = describe
        self._updates = 0
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._kept: dict[tuple[str, Moment], dict[str, _Kept]] = {}
        self._placed: dict[tuple[str, Moment], Rows] = {}
        self._collectives: list[Collective] = []
        self._frames: dict[tuple[str, int], Rows] = {}
        self._scalars: dict[str, float] = {}
        self._later_scalars: dict[str, int] = {}
        self._scalar_calls: list[Callable[[dict[str, float]], None]] = []
        self._late: list[tuple[str, int, LateRows]] = []
        self._forms: dict[int, Form] = {}
        self._order = 0
        self._first_of_pass = 0

    def observe(
        self, quantity: str, micro_step: int, target: str, tensor: Tensor, scale: Tensor | None = None
    ) -> int | None:
        """Reduce a tensor and keep its row; a target seen again in the same micro-step is merged."""
        row = self._summaries.observe(tensor, scale)
        if row is None:
            self._skipped(quantity, target, tensor)
        else:
            self._note_form(row, tensor)
            self.observe_again(quantity, micro_step, target, row)
        return row

    def _note_form(self, row: int, tensor: Tensor) -> None:
        if self._describe is not None:
            self._forms[row] = self._describe(tensor)

    def observe_again(self, quantity: str, micro_step: int, target: str, row: int) -> None:
        """Keep a row that was reduced already, under another name."""
        rows = self._frames.setdefault((quantity, micro_step), {})
        rows.setdefault(target, []).append((row, self._order))
        self._order += 1

    def observe_at(self, quantity: str, moment: Moment, target: str, tensors: list[Tensor]) -> None:
        """Reduce tensors that belong to a moment, now or in an earlier step, into one row; from any thread.

        What is at hand on the host is merged at once, so that thousands of calls in a step take the room of one.
        """
        summary = self._summaries.at_once(tensors)
        if summary is not None:
            self.keep(quantity, moment, target, summary, self._describe and self._describe(tensors[0]))
            return
        for tensor in tensors:
            with self._lock:
                row = self._summaries.observe(tensor)
                if row is not None:
                    self._note_form(row, tensor)
                    rows = self._placed.setdefault((quantity, moment), {})
                    rows.setdefault(target, []).append((row, self._next_order()))
            if row is None:
                self._skipped(quantity, target, tensor)

    def keep(self, quantity: str, moment: Moment, target: str, summary: list[float], form: Form | None = None) -> None:
        """Keep a Summary that was made elsewhere; from any thread."""
        with self._lock:
            kept = self._kept.setdefault((quantity, moment), {})
            if target in kept:
                kept[target].add(summary)
            else:
                kept[target] = _Kept(summary, self._next_order(), form)

    def describe(self, collective: Collective) -> None:
        """A collective is seen for the first time; from any thread."""
        with self._lock:
            self._collectives.append(collective)

    def _next_order(self) -> int:
        self._order += 1
        return self._order - 1

    def observe_latest(self, quantity: str, target: str, tensor: Tensor, scale: Tensor | None = None) -> None:
        """Reduce a tensor; a target seen again in the same step replaces the earlier row."""
        self.take_back(quantity, [target])
        self.observe(quantity, 0, target, tensor, scale)

    def observe_all(
        self, quantity: str, targets: Sequence[str], tensors: list[Tensor], scale: Tensor | None = None
    ) -> None:
        """Reduce a list of tensors at once; a target seen again in the same step replaces the earlier row."""
        if not tensors:
            return
        again = f"{quantity}/{self._updates}"
        frame = self._frames.setdefault((quantity, 0), {})
        rows = self._summaries.observe_many(tensors, scale, again)
        for target, tensor, row in zip(targets, tensors, rows, strict=True):
            if row is None:
                self._skipped(quantity, target, tensor)
                continue
            self._note_form(row, tensor)
            frame[target] = [(row, self._order)]
            self._order += 1

    def observe_later(self, quantity: str, rows: LateRows, most: int) -> None:
        """Keep at most so many rows that are made when the record is; a target told again replaces the earlier row."""
        self._late.append((quantity, self._order, rows))
        self._order += most

    def take_back(self, quantity: str, targets: Iterable[str]) -> None:
        """Forget these targets' rows of a quantity that has one row per step."""
        frame = self._frames.get((quantity, 0), {})
        for target in targets:
            frame.pop(target, None)

    def begin_pass(self) -> None:
        """A forward pass begins."""
        self._first_of_pass = self._order

    def forget_pass(self) -> None:
        """The forward pass that began last came to nothing: forget its rows."""
        for key, rows in list(self._frames.items()):
            kept = {
                target: [seen for seen in all_seen if seen[1] < self._first_of_pass]
                for target, all_seen in rows.items()
            }
            self._frames[key] = {target: all_seen for target, all_seen in kept.items() if all_seen}
            if not self._frames[key]:
                del self._frames[key]

    def seal(self) -> None:
        """An update used what was observed: later lists get rows of their own."""
        self._updates += 1

    @property
    def has_rows(self) -> bool:
        """Whether this step has anything yet."""
        return bool(
            self._frames
            or self._scalars
            or self._later_scalars
            or self._scalar_calls
            or self._kept
            or self._placed
            or self._late
        )

    def log(self, name: str, value: float) -> None:
        """Keep a plain number."""
        self._scalars[name] = value

    def log_later(self, name: str, tensor: Tensor) -> None:
        """Keep a plain number that is still on its way on a device."""
        row = self._summaries.observe(tensor)
        if row is not None:
            self._later_scalars[name] = row

    def log_when(self, fill: Callable[[dict[str, float]], None]) -> None:
        """Let `fill` add plain numbers when the record is built: on the writer's thread, in step order."""
        self._scalar_calls.append(fill)

    def end(self, step: int, time: float) -> Callable[[], StepRecord]:
        """Finish the step: the result waits for the device and gives the record; call it from any thread."""
        with self._lock:
            frames, scalars, later, forms = self._frames, self._scalars, self._later_scalars, self._forms
            kept, placed, collectives = self._kept, self._placed, self._collectives
            late, scalar_calls = self._late, self._scalar_calls
            fetch = self._summaries.collect()
            self._begin()

        def build() -> StepRecord:
            table = fetch()
            for name, row in later.items():
                scalars[name] = float(table[row, SUM])
            for fill in scalar_calls:
                fill(scalars)
            found = [*_build(frames, step, table, forms), *_build_others(kept, placed, table, forms)]
            found += _build_late(late, step)
            return StepRecord(step, found, Scalars(step, time, scalars), collectives)

        return build

    def so_far(self, step: int) -> list[Frame]:
        """What the step in progress has observed by now; waits for the device."""
        with self._lock:
            kept = {key: dict(rows) for key, rows in self._kept.items()}
            placed = {key: {name: list(seen) for name, seen in rows.items()} for key, rows in self._placed.items()}
            fetch = self._summaries.collect(keep=True)
        table = fetch()
        found = [*_build(self._frames, step, table, self._forms), *_build_others(kept, placed, table, self._forms)]
        return [*found, *_build_late(self._late, step)]


def _build(frames: dict[tuple[str, int], Rows], step: int, table: Table, forms: dict[int, Form]) -> list[Frame]:
    return [_frame(quantity, step, micro, rows, table, forms) for (quantity, micro), rows in frames.items() if rows]


def _build_late(late: list[tuple[str, int, LateRows]], step: int) -> list[Frame]:
    """The Frames of rows that are made only now, one per quantity; no Frame where none came of it."""
    found: dict[str, list[tuple[Sequence[str], npt.NDArray[np.int32], Table]]] = {}
    for quantity, first, make in late:
        targets, table = make()
        if targets:
            order = np.arange(first, first + len(targets), dtype=np.int32)
            found.setdefault(quantity, []).append((targets, order, table))
    return [Frame(quantity, step, 0, *_joined(parts)) for quantity, parts in found.items()]


def _joined(
    parts: list[tuple[Sequence[str], npt.NDArray[np.int32], Table]],
) -> tuple[Sequence[str], npt.NDArray[np.int32], Table]:
    """All rows, of a target told twice the last one."""
    targets = tuple(target for part in parts for target in part[0])
    order = np.concatenate([part[1] for part in parts])
    table = np.concatenate([part[2] for part in parts])
    last = {target: at for at, target in enumerate(targets)}
    if len(last) < len(targets):
        places = list(last.values())
        return tuple(last), order[places], table[places]
    return targets, order, table


def _build_others(
    kept: dict[tuple[str, Moment], dict[str, _Kept]],
    placed: dict[tuple[str, Moment], Rows],
    table: Table,
    forms: dict[int, Form],
) -> list[Frame]:
    """The Frames of what belongs to a moment of its own, of this step or an earlier one."""
    frames = [_frame(quantity, *moment, rows, table, forms) for (quantity, moment), rows in placed.items()]
    for (quantity, moment), found in kept.items():
        rows = list(found.values())
        order = np.array([row.order for row in rows], dtype=np.int32)
        summaries = np.array([row.summary for row in rows], dtype=np.float64).reshape(-1, len(COLUMNS))
        described = [row.form for row in rows if row.form is not None]
        frames.append(
            Frame(quantity, *moment, tuple(found), order, summaries, described if len(described) == len(rows) else None)
        )
    return frames


def _frame(quantity: str, step: int, micro_step: int, rows: Rows, table: Table, forms: dict[int, Form]) -> Frame:
    targets = tuple(rows)
    order = np.array([seen[0][1] for seen in rows.values()], dtype=np.int32)
    if all(len(seen) == 1 for seen in rows.values()):
        summaries = table[[seen[0][0] for seen in rows.values()]]
    else:
        picked = [row for seen in rows.values() for row, _ in seen]
        groups = np.repeat(np.arange(len(targets)), [len(seen) for seen in rows.values()])
        summaries = merge(table[picked], groups, len(targets))
    described = [forms[seen[0][0]] for seen in rows.values()] if forms else None
    return Frame(quantity, step, micro_step, targets, order, summaries, described)
