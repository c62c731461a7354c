"""Follow a run by polling its log. Clock and screen are arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vario.core.errors import RunError
from vario.core.text import number
from vario.logs.history import GRADIENT_NORM, LOSS, RATE, History
from vario.logs.names import is_evaluation

SECONDS_BETWEEN_LOOKS = 2.0


@dataclass(frozen=True)
class Row:
    """The values logged at one step."""

    step: int
    values: Mapping[str, float]

    def __str__(self) -> str:
        return "  ".join([f"step {self.step}", *(f"{name} {number(value)}" for name, value in self.values.items())])


def follow(
    find: Callable[[], History],
    show: Callable[[History, list[Row]], None],
    sleep: Callable[[float], None],
) -> History:
    """Show a run whenever its log has grown, until it ends; returns its last state."""
    history = find()
    show(history, new_rows(None, history))
    while not _is_over(history):
        sleep(SECONDS_BETWEEN_LOOKS)
        try:
            found = find()
        except RunError:
            continue  # half-written; the next read sees it whole
        rows = new_rows(history, found)
        if rows or found.step != history.step or found.is_finished != history.is_finished:
            show(found, rows)
        history = found
    return history


def _is_over(history: History) -> bool:
    return bool(history.is_finished) or any(note.kind in ("run_crashed", "run_interrupted") for note in history.notes)


def new_rows(before: History | None, after: History) -> list[Row]:
    """Return the new rows of loss, learning rate, gradient norm and evaluations, by step."""
    rows: dict[int, dict[str, float]] = {}
    names = [name for name in (LOSS, RATE, GRADIENT_NORM) if name in after.curves]
    names += [name for name in after.curves if is_evaluation(name) and "loss" in name]
    for name in names:
        known = set() if before is None or name not in before.curves else set(before.curves[name].steps.tolist())
        curve = after.curves[name]
        for step, value in zip(curve.steps.tolist(), curve.values.tolist(), strict=True):
            if step not in known:
                rows.setdefault(step, {})[name] = value
    return [Row(step, rows[step]) for step in sorted(rows)]
