"""Compares several checkpoints or runs: what they share, where they diverge, and their current losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vario.logs.checkpoints import is_prefix
from vario.logs.history import GRADIENT_NORM, RATE, Curve, History, Values
from vario.reports.progress import shown_loss, trusted_loss

ROWS_SHOWN = 8
EVALUATION_LOSS = "eval_loss"


@dataclass(frozen=True)
class Entry:
    """One of the compared checkpoints or runs."""

    name: str
    path: Path
    step: int | None
    epoch: float | None
    loss: float | None
    lowest_loss: float | None
    eval_loss: float | None
    learning_rate: float | None
    grad_norm: float | None
    part_of: str | None
    """The entry that continues this one: both are the same run."""


@dataclass(frozen=True)
class Difference:
    """The losses at one step or epoch."""

    at: float
    losses: list[float | None]
    """One per line, in order; None if it has none there."""
    differences: list[float | None]
    """Each line's loss minus the first line's."""


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison."""

    entries: list[Entry]
    lines: list[str]
    """Names of the entries that are separate runs, not the beginning of another."""
    axis: str | None
    """What the lines are aligned by: step or epoch; None if nothing overlaps."""
    same_until: int | None
    """The last step up to which all lines are identical."""
    differ_from: int | None
    """The first step at which they differ."""
    differences: list[Difference]


def compare(paths: Sequence[str | Path], histories: Sequence[History]) -> Comparison:
    """Compare histories; separates runs from those that are only the beginning of another."""
    names = short_names(paths)
    part_of = [_continued_by(index, histories) for index in range(len(histories))]
    entries = [
        _entry(name, history, None if longer is None else names[longer])
        for name, history, longer in zip(names, histories, part_of, strict=True)
    ]
    own = [index for index, longer in enumerate(part_of) if longer is None]
    lines = [trusted_loss(histories[index]) for index in own]
    same_until, differ_from = _divergence(lines) if len(lines) > 1 else (None, None)
    axis, differences = _differences(lines, differ_from) if len(lines) > 1 else (None, [])
    return Comparison(entries, [names[index] for index in own], axis, same_until, differ_from, differences)


def short_names(paths: Sequence[str | Path]) -> list[str]:
    """Return the shortest ends of the paths that are distinct."""
    parts = [Path(path).absolute().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return [str(path) for path in paths]


def _continued_by(index: int, histories: Sequence[History]) -> int | None:
    """The longest other history that begins with this one; the first of several equal ones."""
    mine = histories[index]
    found: int | None = None
    for other, history in enumerate(histories):
        if other == index or not len(mine.loss) or not is_prefix(mine.loss, history.loss):
            continue
        is_longer = len(history.loss) > len(mine.loss) or (history.step or 0) > (mine.step or 0)
        if (is_longer or other < index) and (found is None or len(history.loss) > len(histories[found].loss)):
            found = other
    return found


def _entry(name: str, history: History, part_of: str | None) -> Entry:
    loss = trusted_loss(history)
    return Entry(
        name=name,
        path=history.path,
        step=history.step,
        epoch=history.epoch,
        loss=_last(shown_loss(history)),
        lowest_loss=float(loss.values.min()) if len(loss) else None,
        eval_loss=_last(history.curves.get(EVALUATION_LOSS)),
        learning_rate=_last(history.curves.get(RATE)),
        grad_norm=_last(history.curves.get(GRADIENT_NORM)),
        part_of=part_of,
    )


def _last(curve: Curve | None) -> float | None:
    return float(curve.values[-1]) if curve is not None and len(curve) else None


def _divergence(lines: list[Curve]) -> tuple[int | None, int | None]:
    """The last step up to which all rows are identical, and the first at which they differ."""
    shortest = min(map(len, lines))
    first = lines[0]
    same = np.ones(shortest, np.bool_)
    for line in lines[1:]:
        same &= (line.steps[:shortest] == first.steps[:shortest]) & (line.values[:shortest] == first.values[:shortest])
    count = int(np.argmin(same)) if not same.all() else shortest
    later = [int(line.steps[count]) for line in lines if len(line) > count]
    return (int(first.steps[count - 1]) if count else None), (min(later) if later else None)


def _differences(lines: list[Curve], differ_from: int | None) -> tuple[str | None, list[Difference]]:
    for axis in ("step", "epoch"):
        places = [line.steps.astype(np.float64) if axis == "step" else line.epochs for line in lines]
        if any(not len(place) or not np.isfinite(place).all() for place in places):
            continue
        low = max(float(place[0]) for place in places)
        high = min(float(place[-1]) for place in places)
        if axis == "step" and differ_from is not None:
            low = max(low, float(differ_from))
        candidates = np.unique(np.concatenate(places))
        candidates = candidates[(candidates >= low) & (candidates <= high)]
        shared = candidates[[all(np.isin(at, place) for place in places) for at in candidates]]
        candidates = shared if len(shared) else candidates
        if not len(candidates):
            continue
        chosen = candidates[np.unique(np.linspace(0, len(candidates) - 1, ROWS_SHOWN).round().astype(int))]
        return axis, [_difference(float(at), lines, places) for at in chosen]
    return None, []


def _difference(at: float, lines: list[Curve], places: list[Values]) -> Difference:
    """The losses at one step or epoch, interpolated linearly between rows."""
    losses: list[float | None] = [
        float(np.interp(at, place, line.values)) for line, place in zip(lines, places, strict=True)
    ]
    first = losses[0]
    return Difference(at, losses, [None if loss is None or first is None else loss - first for loss in losses])
