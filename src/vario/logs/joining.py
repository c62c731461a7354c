"""Join two logs of one run: newer rows of the second continue the first, and its clock gives the pace."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from vario.logs.history import GRADIENT_NORM, RATE, Curve, History, Note
from vario.logs.names import is_evaluation

TOLERANCE = 2e-3
"""The largest relative difference between equal losses: some writers round to four digits."""
COMPARED = 5

COARSE = (None, "checkpoint_times")
"""Sources of a pace that are less precise than a timestamp on each row."""


def is_same_run(first: History, second: History) -> bool | None:
    """Whether the newest losses that two logs share are equal; None if they share no step."""
    shared, ours, theirs = np.intersect1d(first.loss.steps, second.loss.steps, return_indices=True)
    if not len(shared):
        return None
    a, b = first.loss.values[ours[-COMPARED:]], second.loss.values[theirs[-COMPARED:]]
    return bool(np.allclose(a, b, rtol=TOLERANCE, atol=1e-6, equal_nan=True))


def join(main: History, other: History) -> History:
    """Return the first log, continued and completed by the second."""
    end = int(main.loss.steps[-1]) if len(main.loss) else -1
    curves = dict(main.curves)
    gained = False
    for name, curve in other.curves.items():
        if name in curves:
            later = curve.where(curve.steps > max(end, int(curves[name].steps[-1])))
            if len(later):
                curves[name] = _one_after_the_other(curves[name], later)
                gained = True
        elif name in (RATE, GRADIENT_NORM) or is_evaluation(name):
            curves[name] = curve
            gained = True
    use_clock = other.pace is not None and (main.pace.source if main.pace else None) in COARSE
    if not gained and not use_clock:
        return main
    step = max((each for each in (main.step, other.step) if each is not None), default=None)
    is_further = step != main.step
    max_steps = main.max_steps or other.max_steps
    is_finished = other.is_finished if max_steps is None or step is None else step >= max_steps
    note = Note("joined", {"file": _shown(other.path, main.path), "step": other.step or 0})
    return dataclasses.replace(
        main,
        curves=curves,
        step=step,
        epoch=other.epoch if is_further and other.epoch is not None else main.epoch,
        max_steps=max_steps,
        pace=other.pace if use_clock else main.pace,
        is_finished=is_finished if is_further else main.is_finished,
        written=max(main.written or 0, other.written or 0) or None,
        notes=(*main.notes, note) if gained else main.notes,
    )


def _one_after_the_other(first: Curve, second: Curve) -> Curve:
    columns = zip(
        (first.steps, first.values, first.epochs, first.times),
        (second.steps, second.values, second.epochs, second.times),
        strict=True,
    )
    steps, values, epochs, times = (np.concatenate(pair) for pair in columns)
    return Curve(steps, values, epochs, times)


def _shown(path: Path, beside: Path) -> str:
    for folder in beside.parents:
        if path.is_relative_to(folder):
            return str(path.relative_to(folder))
    return str(path)
