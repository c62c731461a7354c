"""The HF Trainer's console output: one dict per line, `{'loss': 3.37, ...}` in 4.x or `{'loss': '3.368', ...}` in 5.x.

The rows have no step, but if the log contains the progress bar, it is redrawn right after each row.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from bisect import bisect_left
from pathlib import Path
from typing import Any

import numpy as np

from vario.logs import log_format
from vario.logs.history import LOSS, History, Note, Pace, pace_between
from vario.logs.rows import NOT_LOGGED, Rows, number
from vario.logs.text_files import make_history, read_text, seconds_of

ROW = re.compile(r"\{'[^'{}]+': [^{}]*\}")
BAR = re.compile(r"^\s*\d+%\|[^|]*\|\s*(\d+)/(\d+) \[([\d:]+)<", flags=re.MULTILINE)
"""A bar without a label: steps done, total steps, time since the start. Evaluation has one of another length."""
BARE = re.compile(r"(?<=: )(nan|-?inf)\b")


def _looks_right(text: str) -> bool:
    return re.search(r"\{[^{}\n]*'(?:loss|eval_loss|train_loss)': ", text) is not None


@log_format("trainer_console", ("*.log", "*.out", "*.txt"), order=50, looks_right=_looks_right)
def trainer_console(path: Path) -> History:
    """Console output of the HF Trainer."""
    text = read_text(path)
    bars = _bars(text)
    rows = Rows()
    final: dict[str, Any] = {}
    counted = 0
    for found in ROW.finditer(text):
        row = _row(found[0])
        if "train_loss" in row and LOSS not in row:
            final = row
            continue
        if row and final and LOSS in row:
            final = {}  # another run starts in the same log
        counted += LOSS in row
        epoch = number(row.pop("epoch", None))
        rows.add(_step_at(found.end(), bars) if bars else counted, row, NOT_LOGGED if epoch is None else epoch)
    curves, notes = rows.curves()
    if not bars:
        notes.append(Note("steps_counted"))
    max_steps = bars[0][2] if bars else None
    pace = _bar_pace(bars) or _final_pace(final, counted)
    history = make_history(path, "trainer_console", curves, notes, max_steps=max_steps, pace=pace)
    if final:
        history = dataclasses.replace(history, is_finished=True, runtime_seconds=number(final.get("train_runtime")))
    return history


def _bars(text: str) -> list[tuple[int, int, int, float]]:
    """Position in the text, step, total steps and seconds for every state of the training bar."""
    found = [(match.start(), int(match[1]), int(match[2]), seconds_of(match[3]) or 0.0) for match in BAR.finditer(text)]
    return [bar for bar in found if bar[2] == found[0][2]]


def _step_at(place: int, bars: list[tuple[int, int, int, float]]) -> int:
    """The step of a row: from the next bar, or from the last one."""
    return bars[min(bisect_left(bars, (place,)), len(bars) - 1)][1]


def _bar_pace(bars: list[tuple[int, int, int, float]]) -> Pace | None:
    steps = np.array([bar[1] for bar in bars], np.int64)
    return pace_between(steps, np.array([bar[3] for bar in bars]), "progress_bar") if bars else None


def _final_pace(final: dict[str, Any], step: int) -> Pace | None:
    rate = number(final.get("train_steps_per_second"))
    return Pace(np.array([step]), np.array([1 / rate]), "final_row") if rate else None


def _row(text: str) -> dict[str, Any]:
    try:
        found = ast.literal_eval(BARE.sub(r"'\1'", text))
    except (ValueError, SyntaxError):
        return {}
    return found if isinstance(found, dict) else {}
