"""The rows of the step in progress: what was observed, when, and how it becomes Frames."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from vario.backends.base import LateRows, Summaries, Tensor
from vario.core.records import SUM, Collective, Frame, Scalars, StepId, StepRecord, TensorSpec
from vario.training.frame_rows import Aside, Kept, Rows, add_row, build_frames, build_late, build_others, divided

_NEXT = -1
"""The micro-step of rows that are recorded only if they turn out to be of the next step."""


class StepFrames:
    """Collects one step's observations; `end` hands them over and starts afresh."""

    def __init__(
        self,
        summaries: Summaries,
        skipped: Callable[[str, str, Tensor], None],
        describe: Callable[[Tensor], TensorSpec] | None = None,
    ) -> None:
        """`skipped` is told the quantity, target and tensor whenever a tensor has no numbers to reduce.

        With `describe` each Frame also says what shape and dtype its tensors had.
        """
        self._summaries = summaries
        self._skipped = skipped
        self._describe = describe
        self._updates = 0
        self._lock = threading.Lock()
        self._watched: frozenset[str] = frozenset()
        self._idle: list[Aside] = []
        self._held: Aside | None = None
        self.is_of_next_step = False
        """Whether the latest of a target is told that this step has updated already: its row, if any, stays."""
        self._begin()

    def begin_step(self, watched: Iterable[str]) -> None:
        """A step begins; these quantities are watched in it."""
        self._watched = frozenset(watched)
        self._idle.clear()

    def _begin(self) -> None:
        self._open: list[Aside] = []
        """Set aside, and still in the table of the rows in progress."""
        self._returned: list[Aside] = []
        self._kept: dict[tuple[str, StepId], dict[str, Kept]] = {}
        self._placed: dict[tuple[str, StepId], Rows] = {}
        self._collectives: list[Collective] = []
        self._frames: dict[tuple[str, int], Rows] = {}
        self._scalars: dict[str, float] = {}
        self._later_scalars: dict[str, int] = {}
        self._scalar_calls: list[Callable[[dict[str, float]], None]] = []
        self._late: list[tuple[str, int, LateRows]] = []
        self._forms: dict[int, TensorSpec] = {}
        self._lists: dict[tuple[str, int], list[Sequence[str]]] = {}
        """The targets of each list of tensors, by quantity and the number of updates before it."""
        self._order = 0
        self._first_of_pass = self._first_of_micro_step = 0
        self._first_since_update = 0

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
        add_row(self._frames.setdefault((quantity, micro_step), {}), target, row, self._order)
        self._order += 1

    def observe_at(self, quantity: str, step_id: StepId, target: str, tensors: list[Tensor]) -> None:
        """Reduce tensors that belong to a step, this one or an earlier one, into one row; from any thread.

        What is at hand on the host is merged at once, so that thousands of calls in a step take the room of one.
        """
        summary = self._summaries.at_once(tensors)
        if summary is not None:
            self.keep(quantity, step_id, target, summary, self._describe and self._describe(tensors[0]))
            return
        for tensor in tensors:
            with self._lock:
                row = self._summaries.observe(tensor)
                if row is not None:
                    self._note_form(row, tensor)
                    add_row(self._placed.setdefault((quantity, step_id), {}), target, row, self._next_order())
            if row is None:
                self._skipped(quantity, target, tensor)

    def keep(
        self, quantity: str, step_id: StepId, target: str, summary: list[float], form: TensorSpec | None = None
    ) -> None:
        """Keep a Summary that was made elsewhere; from any thread."""
        with self._lock:
            kept = self._kept.setdefault((quantity, step_id), {})
            if target in kept:
                kept[target].add(summary)
            else:
                kept[target] = Kept(summary, self._next_order(), form)

    def describe(self, collective: Collective) -> None:
        """A collective is seen for the first time; from any thread."""
        with self._lock:
            self._collectives.append(collective)

    def _next_order(self) -> int:
        self._order += 1
        return self._order - 1

    def observe_latest(self, quantity: str, target: str, tensor: Tensor, scale: Tensor | None = None) -> None:
        """Reduce a tensor; a target seen again in the same step replaces the earlier row."""
        if self.is_of_next_step:
            self._frames.get((quantity, _NEXT), {}).pop(target, None)
            self.observe(quantity, _NEXT, target, tensor, scale)
            return
        self.take_back(quantity, [target])
        self.observe(quantity, 0, target, tensor, scale)

    def observe_all(
        self, quantity: str, targets: Sequence[str], tensors: list[Tensor], scale: Tensor | None = None
    ) -> None:
        """Reduce a list of tensors at once; a target seen again in the same step replaces the earlier row."""
        if not tensors:
            return
        again = f"{quantity}/{self._updates}/{self._list_number(quantity, targets)}"
        frame = self._frames.setdefault((quantity, 0), {})
        self._forget_returned(quantity, targets)
        rows = self._summaries.observe_many(tensors, scale, again)
        if self._describe is None and None not in rows:
            # Very many targets at once: no code of ours runs for each of them.
            orders = range(self._order, self._order + len(rows))
            frame.update(zip(targets, zip(rows, orders, strict=True), strict=True))  # type: ignore[arg-type]
            self._order += len(rows)
            return
        for target, tensor, row in zip(targets, tensors, rows, strict=True):
            if row is None:
                self._skipped(quantity, target, tensor)
                continue
            self._note_form(row, tensor)
            frame[target] = row, self._order
            self._order += 1

    def _list_number(self, quantity: str, targets: Sequence[str]) -> int:
        """Which of a quantity's lists since the latest update this is: one of the same targets takes its place."""
        known = self._lists.setdefault((quantity, self._updates), [])
        for number, names in enumerate(known):
            if names is targets or names == targets:
                return number
        known.append(targets)
        return len(known) - 1

    def observe_later(self, quantity: str, rows: LateRows, most: int) -> None:
        """Keep at most so many rows that are made when the record is; a target told again replaces the earlier row."""
        self._late.append((quantity, self._order, rows))
        self._order += most

    def take_back(self, quantity: str, targets: Iterable[str]) -> None:
        """Forget these targets' rows of a quantity that has one row per step."""
        frame = self._frames.get((quantity, 0), {})
        targets = list(targets)
        for target in targets:
            frame.pop(target, None)
        self._forget_returned(quantity, targets)

    def _forget_returned(self, quantity: str, targets: Iterable[str]) -> None:
        for part in self._returned:
            part.pick((quantity, 0), targets)

    def set_aside(self, quantity: str, targets: Iterable[str]) -> None:
        """Take these targets' rows out of the step; `bring_back` puts them in again."""
        aside = Aside(self._frames, self._forms).pick((quantity, 0), targets)
        if aside is not None:
            self._idle.append(aside)
            self._open.append(aside)

    def bring_back(self, quantity: str, targets: Iterable[str]) -> None:
        """These targets' rows belong to the step after all, even if the rest of it was handed over."""
        targets = list(targets)
        for aside in self._idle:
            picked = aside.pick((quantity, 0), targets)
            if picked is not None and picked.fetch is None:
                self._frames.setdefault((quantity, 0), {}).update(picked.frames[quantity, 0])
            elif picked is not None:
                self._returned.append(picked)

    def hold_pass(self, first_micro_step: int) -> None:
        """What was observed since the latest update, from that micro-step on, is of the next step."""
        self._held = Aside({}, self._forms)
        for (quantity, micro_step), rows in list(self._frames.items()):
            kept, held = divided(rows, self._first_since_update)
            self._replace((quantity, micro_step), kept)
            if held:
                self._held.frames.setdefault((quantity, max(0, micro_step - first_micro_step)), {}).update(held)
        self._open.append(self._held)

    def take_up_pass(self) -> None:
        """The next step has begun: what was held for it and is watched in it comes in."""
        held, self._held = self._held, None
        for key, rows in (held.frames if held is not None else {}).items():
            if key[0] in self._watched and held is not None:
                for target in rows:
                    self._frames.get(key, {}).pop(target, None)
                self._returned.append(Aside({key: rows}, held.forms, held.fetch))

    def begin_pass(self, is_new: bool = True) -> None:
        """A forward pass begins; not new where others wait for the same backward."""
        self._first_of_pass = self._order
        if is_new:
            self._first_of_micro_step = self._order

    def forget_pass(self) -> None:
        """The forward pass that began last came to nothing: forget its rows."""
        self._forget_since(self._first_of_pass)

    def forget_micro_step(self) -> None:
        """So did the backward pass of the latest forward passes."""
        self._forget_since(self._first_of_micro_step)

    def forget_update(self) -> None:
        """An update failed: forget what was observed since the one before it."""
        self._forget_since(self._first_since_update)

    def _forget_since(self, first: int) -> None:
        for key, rows in list(self._frames.items()):
            self._replace(key, divided(rows, first)[0])

    def _replace(self, key: tuple[str, int], rows: Rows) -> None:
        if rows:
            self._frames[key] = rows
        else:
            del self._frames[key]

    def seal(self) -> None:
        """An update used what was observed: later lists get rows of their own."""
        self._updates += 1
        self._first_since_update = self._order

    def discard(self) -> None:
        """Forget the step in progress."""
        with self._lock:
            self._summaries.collect()
            self._begin()

    @property
    def has_numbers(self) -> bool:
        """Whether plain numbers were logged in this step."""
        return bool(self._scalars or self._later_scalars)

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
            or self._returned
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
            frames = {key: rows for key, rows in frames.items() if key[1] != _NEXT}
            late, scalar_calls, returned = self._late, self._scalar_calls, self._returned
            fetch = self._summaries.collect()
            for aside in self._open:
                aside.fetch = fetch
            self._begin()

        def build() -> StepRecord:
            table = fetch()
            for name, row in later.items():
                scalars[name] = float(table[row, SUM])
            for fill in scalar_calls:
                fill(scalars)
            found = [*build_frames(frames, step, table, forms), *build_others(kept, placed, table, forms)]
            found += build_late(late, step)
            found += [frame for part in returned for frame in part.build(step)]
            return StepRecord(step, found, Scalars(step, time, scalars), collectives)

        return build

    def so_far(self, step: int) -> list[Frame]:
        """What the step in progress has observed by now; waits for the device."""
        with self._lock:
            kept = {key: dict(rows) for key, rows in self._kept.items()}
            placed: dict[tuple[str, StepId], Rows] = {
                key: {name: list(seen) for name, seen in rows.items()} for key, rows in self._placed.items()
            }
            fetch = self._summaries.collect(keep=True)
        table = fetch()
        frames = {key: rows for key, rows in self._frames.items() if key[1] != _NEXT}
        found = [*build_frames(frames, step, table, self._forms), *build_others(kept, placed, table, self._forms)]
        found += [frame for part in self._returned for frame in part.build(step)]
        return [*found, *build_late(self._late, step)]
