"""Rows on their way to Frames: those of a step, those kept from elsewhere, and those that change steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vario.backends.base import LateRows
from vario.core.records import COLUMNS, MAX, MIN, Frame, StepId, Table, TensorSpec, merge

Seen = tuple[int, int] | list[int]
"""Row and order of a target's observation, of several one after the other: a tuple of two, or a longer list."""
Rows = dict[str, Seen]
"""What was observed, by target."""


def add_row(rows: Rows, target: str, row: int, order: int) -> None:
    """Add an observation of a target."""
    before = rows.get(target)
    if before is None:
        rows[target] = row, order
    elif isinstance(before, list):
        before += row, order
    else:
        rows[target] = [*before, row, order]


class Kept:
    """A Summary that was made elsewhere; later ones of the same target are merged into it."""

    def __init__(self, summary: list[float], order: int, form: TensorSpec | None) -> None:
        self.summary = summary
        self.order = order
        self.form = form

    def add(self, other: list[float]) -> None:
        """Merge another one into it."""
        merged = [mine + theirs for mine, theirs in zip(self.summary, other, strict=True)]
        # A NaN stands for "no finite element seen" and gives way to a number.
        merged[MIN], merged[MAX] = (
            float(fold(self.summary[at], other[at])) for at, fold in ((MIN, np.fmin), (MAX, np.fmax))
        )
        self.summary = merged


@dataclass(eq=False)
class Aside:
    """Rows taken out of a step: they may come back later in that step, or belong to the next one."""

    frames: dict[tuple[str, int], Rows]
    forms: dict[int, TensorSpec]
    fetch: Callable[[], Table] | None = None
    """Gives the table the rows are in, once the step's rows were handed over."""

    def pick(self, key: tuple[str, int], targets: Iterable[str]) -> Aside | None:
        """Some rows of one frame, which leave this one."""
        rows = self.frames.get(key, {})
        picked = {target: rows.pop(target) for target in list(targets) if target in rows}
        return Aside({key: picked}, self.forms, self.fetch) if picked else None

    def build(self, step: int) -> list[Frame]:
        """The rows as Frames of a step; waits for the device."""
        return [] if self.fetch is None else build_frames(self.frames, step, self.fetch(), self.forms)


def divided(rows: Rows, first: int) -> tuple[Rows, Rows]:
    """What was observed before that place in the order, and what from there on."""
    before: Rows = {}
    since: Rows = {}
    for target, seen in rows.items():
        for row, order in zip(seen[::2], seen[1::2], strict=True):
            add_row(before if order < first else since, target, row, order)
    return before, since


def build_frames(
    frames: dict[tuple[str, int], Rows], step: int, table: Table, forms: dict[int, TensorSpec]
) -> list[Frame]:
    """One Frame of each quantity and micro-step that has rows."""
    return [_frame(quantity, step, micro, rows, table, forms) for (quantity, micro), rows in frames.items() if rows]


def build_late(late: list[tuple[str, int, LateRows]], step: int) -> list[Frame]:
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


def build_others(
    kept: dict[tuple[str, StepId], dict[str, Kept]],
    placed: dict[tuple[str, StepId], Rows],
    table: Table,
    forms: dict[int, TensorSpec],
) -> list[Frame]:
    """The Frames of what belongs to a step of its own, this one or an earlier one."""
    frames = [_frame(quantity, *step_id, rows, table, forms) for (quantity, step_id), rows in placed.items()]
    for (quantity, step_id), found in kept.items():
        rows = list(found.values())
        order = np.array([row.order for row in rows], dtype=np.int32)
        summaries = np.array([row.summary for row in rows], dtype=np.float64).reshape(-1, len(COLUMNS))
        described = [row.form for row in rows if row.form is not None]
        frames.append(
            Frame(
                quantity, *step_id, tuple(found), order, summaries, described if len(described) == len(rows) else None
            )
        )
    return frames


def _frame(quantity: str, step: int, micro_step: int, rows: Rows, table: Table, forms: dict[int, TensorSpec]) -> Frame:
    targets = tuple(rows)
    order = np.array([seen[1] for seen in rows.values()], dtype=np.int32)
    sizes = list(map(len, rows.values()))
    if max(sizes) == 2:
        summaries = table[[seen[0] for seen in rows.values()]]
    else:
        picked = [row for seen in rows.values() for row in seen[::2]]
        groups = np.repeat(np.arange(len(targets)), [size // 2 for size in sizes])
        summaries = merge(table[picked], groups, len(targets))
    described = [forms[seen[0]] for seen in rows.values()] if forms else None
    return Frame(quantity, step, micro_step, targets, order, summaries, described)
