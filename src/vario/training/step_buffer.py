"""The rows of the step in progress: what was observed and when, and how it becomes Frames."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vario.backends.protocols.observing import Describe, LateBins, LateRows, Named, Places, Summaries, Tensor
from vario.core.records import Collective, Frame, StepId, StepRecord, TensorSpec
from vario.training.frame_rows import (
    Conditional,
    EndedStep,
    HeldRows,
    Late,
    Listed,
    MergedSummary,
    RowDetails,
    Rows,
    add_row,
    add_rows,
    build_frames,
    build_late,
    build_others,
    copied,
    divided,
    list_number,
    put_rows,
)
from vario.training.row_bins import RowBins

_NEXT = -1
"""Micro-step of rows that are recorded only if they turn out to belong to the next step."""


class StepFrames:
    """Collects one step's observations; `end` hands them over and starts the next."""

    def __init__(self, summaries: Summaries, skipped: Callable[[str, str, Tensor], None]) -> None:
        """`skipped` gets the quantity, target and tensor whenever a tensor's values cannot be read."""
        self._summaries, self._skipped = summaries, skipped
        self.is_steady = summaries.is_steady
        self._describe: Describe | None = None
        self._lock = threading.Lock()
        self.watched: frozenset[str] = frozenset()
        """The quantities that this step records."""
        self.bins = RowBins()
        self._idle: list[HeldRows] = []
        self._held: HeldRows | None = None
        self._device_seconds: dict[str, float] = {}
        self.keeps_norm = False
        """Whether to log the norm of all gradients."""
        self.derivations: list[Callable[[Sequence[Frame], dict[str, float]], None]] = []
        """Called on the writer thread with the frames of each record and its plain numbers, to add further ones."""
        self.is_of_next_step = False
        """Whether `is_latest` rows are for the next step: this one has had its update, so its rows stay."""
        self.places = Places()
        self._begin()

    def keep_specs(self, describe: Describe) -> None:
        """Add the shape and dtype of the tensors to each Frame from now on."""
        self._describe = describe

    def begin_step(self, watched: Iterable[str]) -> None:
        """Start a step that records these quantities."""
        self.watched = frozenset(watched)
        self.bins.begin_step(self.watched)
        self._idle.clear()

    def _begin(self) -> None:
        self._open: list[HeldRows] = []
        """Set aside, and still in the table of the rows in progress."""
        self._returned: list[HeldRows] = []
        self._kept: dict[tuple[str, StepId], dict[str, MergedSummary]] = {}
        self._placed: dict[tuple[str, StepId], Rows] = {}
        self._collectives: list[Collective] = []
        self._frames: dict[tuple[str, int], Rows] = {}
        self._listed: dict[str, Listed] = {}
        """By quantity: the list, if one list has all its rows. The quantity's first frame is empty then."""
        self._scalars: dict[str, float] = {}
        self._later_scalars: dict[str, int] = {}
        self._scalar_calls: list[Callable[[dict[str, float]], None]] = []
        self._late: list[Late] = []
        self._conditional: Conditional | None = None
        self._details = RowDetails()
        self._lists: dict[tuple[str, int], list[Sequence[str]]] = {}
        """The targets of each list of tensors, by quantity and number of updates before it."""
        self._updates = self._num_together = self.places.next = 0
        self._first_of_pass = self._first_of_micro_step = 0
        self._first_since_update = 0

    # Reducing tensors

    def observe(
        self,
        quantity: str,
        micro_step: int,
        target: str,
        tensor: Tensor,
        scale: Tensor | None = None,
        is_latest: bool = False,
        may_wait: bool = False,
    ) -> int | None:
        """Reduce a tensor; its row is merged with the target's earlier one, or replaces it (`is_latest`)."""
        if is_latest:
            micro_step = self._make_room(quantity, target)
        row = self._summaries.observe(tensor, scale, (quantity, target) if may_wait else None)
        if self._summaries.device_seconds:
            self._count_device(quantity)
        if row is None:
            self._skipped(quantity, target, tensor)
            return None
        self._note_spec(row, tensor)
        self.add_row(quantity, micro_step, target, row)
        self.bins.count(quantity, [row], [tensor], scale)
        return row

    def _make_room(self, quantity: str, target: str) -> int:
        """Forget the row of a target with one row per step; return the micro-step of the next row."""
        if self.is_of_next_step:
            self._frames.get((quantity, _NEXT), {}).pop(target, None)
            return _NEXT
        self.take_back(quantity, [target])
        return 0

    def _count_device(self, quantity: str) -> None:
        self._device_seconds[quantity] = self._device_seconds.get(quantity, 0.0) + self._summaries.device_seconds
        self._summaries.device_seconds = 0.0

    def take_device_seconds(self) -> dict[str, float]:
        """Return the estimated device seconds of each quantity since the last call."""
        own, self._device_seconds = self._device_seconds, {}
        return own | self.bins.take_device_seconds()

    def _note_spec(self, row: int, tensor: Tensor) -> None:
        if self._describe is not None:
            self._details.specs[row] = self._describe(tensor)

    def observe_at(self, quantity: str, step_id: StepId, target: str, tensors: list[Tensor]) -> None:
        """Reduce tensors of a step, this one or an earlier one, into one row; safe from any thread."""
        # Values on the host are merged at once, so thousands of calls in a step take the room of one.
        summary = self._summaries.at_once(tensors)
        if summary is not None:
            self.add_summary(quantity, step_id, target, summary, self._describe and self._describe(tensors[0]))
            return
        for tensor in tensors:
            with self._lock:
                row = self._summaries.observe(tensor)
                if row is not None:
                    self._note_spec(row, tensor)
                    add_row(self._placed.setdefault((quantity, step_id), {}), target, row, self.next_order())
            if row is None:
                self._skipped(quantity, target, tensor)

    def _unfold(self, *quantities: str) -> None:
        """Make entries for the targets of a quantity's list, because one of them is about to be read or changed."""
        for quantity in quantities:
            if quantity in self._listed:
                self._frames[quantity, 0].update(self._listed.pop(quantity).unfold())

    def observe_all(
        self,
        quantity: str,
        targets: Sequence[str],
        tensors: list[Tensor],
        scale: Tensor | None = None,
        is_wanted: Callable[[float], bool] | None = None,
    ) -> None:
        """Reduce a list of tensors at once; a target observed again in the same step replaces the earlier row.

        With `is_wanted` the norm of all is logged, and the writer keeps the rows only if it is wanted.
        """
        if not tensors:
            return
        if is_wanted is not None:
            rows = self._summaries.observe_many(tensors, scale, f"{quantity}/{self._updates}/if")
            self._count_device(quantity)
            self._conditional = quantity, targets, rows, is_wanted
            return
        lists = self._lists.setdefault((quantity, self._updates), [])
        again = f"{quantity}/{self._updates}/{list_number(lists, targets)}"
        frame = self._frames.setdefault((quantity, 0), {})
        self._forget_returned(quantity, targets)
        rows = self._summaries.observe_many(tensors, scale, again)
        self._count_device(quantity)
        self.bins.count(quantity, rows, tensors, scale)
        if not self._has_details(rows):
            # Very many targets at once: no Python code runs per target.
            listed = Listed(targets, rows, self.places.next)  # type: ignore[arg-type]
            self.places.next += len(rows)
            if quantity in self._listed and self._listed[quantity].targets is not targets:
                self._unfold(quantity)
            if frame:
                frame.update(listed.unfold())
            else:
                self._listed[quantity] = listed
            return
        self._unfold(quantity)
        for target, tensor, row in zip(targets, tensors, rows, strict=True):
            if row is None:
                self._skipped(quantity, target, tensor)
                continue
            self._note_spec(row, tensor)
            frame[target] = row, self.next_order()

    def _has_details(self, rows: Sequence[int | None]) -> bool:
        """Whether rows of a list have to be looked at one by one."""
        return self._describe is not None or not (isinstance(rows, range) or None not in rows)

    def observe_together(
        self, quantity: str, tensors: list[Tensor], named: Named, scale: Tensor | None
    ) -> Sequence[int | None]:
        """Reduce tensors together and keep their rows, each under its names."""
        self._num_together += 1
        rows = self._summaries.observe_many(tensors, scale, f"{quantity}/together/{self._num_together}")
        self._count_device(quantity)
        self.bins.count(quantity, rows, tensors, scale)
        self._unfold(quantity)
        for at, (tensor, row) in enumerate(zip(tensors, rows, strict=True) if self._has_details(rows) else ()):
            if row is None:
                self._skipped(quantity, named.targets[named.tensors.index(at)], tensor)
            else:
                self._note_spec(row, tensor)
        add_rows(self._frames.setdefault((quantity, named.micro_step), {}), named, rows)
        return rows

    def add_row(self, quantity: str, micro_step: int, target: str, row: int, order: int | None = None) -> None:
        """Keep a row that was already reduced."""
        if quantity in self._listed:
            self._unfold(quantity)
        rows = self._frames.setdefault((quantity, micro_step), {})
        add_row(rows, target, row, self.next_order() if order is None else order)

    def add_summary(
        self, quantity: str, step_id: StepId, target: str, summary: list[float], spec: TensorSpec | None = None
    ) -> None:
        """Keep a Summary that was computed elsewhere; safe from any thread."""
        with self._lock:
            kept = self._kept.setdefault((quantity, step_id), {})
            if target in kept:
                kept[target].add(summary)
            else:
                kept[target] = MergedSummary(summary, self.next_order(), spec)

    def add_later(self, quantity: str, rows: LateRows, most: int, bins: LateBins | None = None) -> None:
        """Keep at most `most` rows that are computed with the record; a target's later row replaces the earlier one."""
        self._late.append((quantity, self.places.next, rows, bins))
        self.places.next += most

    def describe(self, collective: Collective) -> None:
        """Keep the description of a collective seen for the first time; safe from any thread."""
        with self._lock:
            self._collectives.append(collective)

    def next_order(self) -> int:
        """Take the next place in the order of this step's rows."""
        self.places.next += 1
        return self.places.next - 1

    # Rows that belong to no step, or to another one

    def take_back(self, quantity: str, targets: Iterable[str]) -> None:
        """Forget these targets' rows of a quantity that has one row per step."""
        self._unfold(quantity)
        frame = self._frames.get((quantity, 0), {})
        targets = list(targets)
        for target in targets:
            frame.pop(target, None)
        self._forget_returned(quantity, targets)

    def _forget_returned(self, quantity: str, targets: Iterable[str]) -> None:
        for part in self._returned:
            part.pick((quantity, 0), targets)

    def set_aside(self, quantity: str, targets: Iterable[str]) -> None:
        """Take these targets' rows out of the step; `bring_back` restores them."""
        self._unfold(quantity)
        aside = HeldRows(self._frames, self._details).pick((quantity, 0), targets)
        if aside is not None:
            self._idle.append(aside)
            self._open.append(aside)

    def bring_back(self, quantity: str, targets: Iterable[str]) -> None:
        """Restore these targets' rows: they belong to the step after all, even if the rest of it was handed over."""
        self._unfold(quantity)
        targets = list(targets)
        for aside in self._idle:
            picked = aside.pick((quantity, 0), targets)
            if picked is not None and picked.fetch is None:
                self._frames.setdefault((quantity, 0), {}).update(picked.frames[quantity, 0])
            elif picked is not None:
                self._returned.append(picked)

    def hold_pass(self, first_micro_step: int) -> None:
        """Hold what was observed since the latest update, from that micro-step on, for the next step."""
        self._held = HeldRows({}, self._details)
        self._unfold(*list(self._listed))
        for (quantity, micro_step), rows in list(self._frames.items()):
            kept, held = divided(rows, self._first_since_update)
            put_rows(self._frames, (quantity, micro_step), kept)
            if held:
                self._held.frames.setdefault((quantity, max(0, micro_step - first_micro_step)), {}).update(held)
        self._open.append(self._held)

    def take_up_pass(self) -> None:
        """Add what was held for the step that has now begun, if it is recorded there."""
        held, self._held = self._held, None
        self._unfold(*list(self._listed))
        for key, rows in (held.frames if held is not None else {}).items():
            if key[0] in self.watched and held is not None:
                for target in rows:
                    self._frames.get(key, {}).pop(target, None)
                self._returned.append(HeldRows({key: rows}, held.details, held.fetch))

    def begin_pass(self, is_new: bool = True) -> None:
        """Start a forward pass; `is_new` is False if others wait for the same backward pass."""
        self._first_of_pass = self.places.next
        self._first_of_micro_step = self.places.next if is_new else self._first_of_micro_step

    def forget_pass(self) -> None:
        """Forget the rows of the latest forward pass, which came to nothing."""
        self._forget_since(self._first_of_pass)

    def forget_micro_step(self) -> None:
        """Forget the rows of the backward pass of the latest forward passes, which came to nothing."""
        self._forget_since(self._first_of_micro_step)

    def forget_update(self) -> None:
        """Forget what was observed since the previous update, because this one failed."""
        self._forget_since(self._first_since_update)

    def _forget_since(self, first: int) -> None:
        self._unfold(*list(self._listed))
        for key, rows in list(self._frames.items()):
            put_rows(self._frames, key, divided(rows, first)[0])

    def seal(self) -> None:
        """Give later lists their own rows, because an update used those so far."""
        self._updates += 1
        self._first_since_update = self.places.next

    def discard(self) -> None:
        """Forget the step in progress."""
        with self._lock:
            self._summaries.collect()
            self.bins.collect()
            self._begin()

    @property
    def has_numbers(self) -> bool:
        """Whether plain numbers were logged in this step."""
        return bool(self._scalars or self._later_scalars)

    @property
    def has_tensors(self) -> bool:
        """Whether any tensor of this step was observed."""
        return bool(self._frames)

    @property
    def has_rows(self) -> bool:
        """Whether this step has any rows yet."""
        others = self._scalar_calls, self._kept, self._placed, self._late, self._returned
        return self.has_tensors or self.has_numbers or any(others)

    def log(self, name: str, value: Any) -> None:
        """Log a plain number: a Python number or a one-element tensor. Does not wait for the device."""
        if (number := self._summaries.plain_number(value)) is not None:
            self._scalars[name] = number
        elif (row := self._summaries.observe(value)) is not None:
            self._later_scalars[name] = row

    def log_when(self, fill: Callable[[dict[str, float]], None]) -> None:
        """Let `fill` add plain numbers when the record is built: on the writer thread, in step order."""
        self._scalar_calls.append(fill)

    def end(self, step: int, time: float) -> Callable[[], StepRecord]:
        """Finish the step; the result waits for the device and returns the record, on any thread."""
        with self._lock:
            fetch = self._summaries.collect()
            for aside in self._open:
                aside.fetch = fetch
            own = {key: rows for key, rows in self._frames.items() if key[1] != _NEXT}
            self._details.bins = self.bins.collect()
            rows = own, self._listed, self._details, self._kept, self._placed, self._late, self._returned
            numbers = self._scalars, self._later_scalars, self._scalar_calls, self.keeps_norm, self.derivations
            ended = EndedStep(step, time, fetch, *rows, self._conditional, self._collectives, *numbers)
            self._begin()
        return ended.build

    def so_far(self, step: int) -> list[Frame]:
        """Return what the step in progress has observed so far; waits for the device."""
        self._unfold(*list(self._listed))
        with self._lock:
            kept = {key: dict(rows) for key, rows in self._kept.items()}
            placed = {key: copied(rows) for key, rows in self._placed.items()}
            fetch = self._summaries.collect(keep=True)
        frames, table = {key: rows for key, rows in self._frames.items() if key[1] != _NEXT}, fetch()
        found = [*build_frames(frames, step, table, self._details), *build_others(kept, placed, table, self._details)]
        found += [frame for part in self._returned for frame in part.build(step)]
        return [*found, *build_late(self._late, step)]
