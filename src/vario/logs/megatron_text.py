"""Text log of Megatron-LM and its forks: `iteration 100/ 5000 | lm loss: 2.5E+00 | ...`."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from vario.logs import log_format
from vario.logs.history import LOSS, History, Note, Pace, renamed
from vario.logs.names import canonical_names
from vario.logs.rows import NOT_LOGGED, Rows, number
from vario.logs.text_files import make_history, read_text, unix_time

HEAD = re.compile(r"iteration\s+(\d+)/\s*(\d+)\s*\|")
EVALUATION = re.compile(r"validation loss at iteration\s+(\d+)(?: on (\w+) set)?[^|]*\|(.*)")
STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)\]")
STEP_TIME = "elapsed time per iteration (ms)"


@log_format("megatron", ("*.log", "*.out", "*.txt"), order=40, looks_right=lambda text: HEAD.search(text) is not None)
def megatron(path: Path) -> History:
    """Text log of Megatron-LM."""
    rows = Rows()
    max_steps = None
    for line in read_text(path).splitlines():
        if match := EVALUATION.search(line):
            # The second number, the perplexity, is the exponential of the first: not independent.
            values = {name: value for name, value in _pairs(match[3]).items() if "PPL" not in name}
            rows.add(int(match[1]), {_evaluation_name(name, match[2]): value for name, value in values.items()})
        elif match := HEAD.search(line):
            max_steps = int(match[2])
            stamp = STAMP.search(line)
            rows.add(int(match[1]), _pairs(line[match.end() :]), time=unix_time(stamp[1]) if stamp else NOT_LOGGED)
    curves, notes = rows.curves()
    pace = None
    if clock := curves.pop(STEP_TIME, None):
        pace = Pace(clock.steps, clock.values / 1e3, "iteration_time")
    curves = renamed(curves, canonical_names(curves))
    steps = max((curve.steps for curve in curves.values()), key=len, default=np.zeros(0))
    missing = len(steps) - len(curves[LOSS]) if LOSS in curves else 0
    if missing > 0:
        notes.append(Note("loss_left_out", {"count": missing}))
    return make_history(path, "megatron", curves, notes, max_steps=max_steps, pace=pace)


def _evaluation_name(name: str, dataset: str | None) -> str:
    plain = name.removesuffix("value").strip().lower().replace(" ", "_")
    prefix = "eval_" if dataset in (None, "validation") else f"eval_{dataset}_"
    return prefix + ("loss" if plain == "lm_loss" else plain)


def _pairs(text: str) -> dict[str, float]:
    """Names and numbers of `name: value | name: value`; for `a/b`, as some forks write, the first."""
    found = {}
    for cell in text.split("|"):
        name, _, value = cell.rpartition(":")
        read = number(value.strip().partition("/")[0])
        if name and read is not None:
            found[name.strip()] = read
    return found
