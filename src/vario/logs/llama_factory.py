"""trainer_log.jsonl of LLaMA-Factory: one JSON object per line, with its own clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vario.core.errors import RunCorrupt
from vario.logs import log_format
from vario.logs.history import RATE, History, Note, pace_between
from vario.logs.rows import NOT_LOGGED, Rows, number, whole
from vario.logs.text_files import make_history, read_text, seconds_of

LEFT_OUT = ("current_steps", "total_steps", "epoch", "percentage", "elapsed_time", "remaining_time")


@log_format("llama_factory", ("trainer_log.jsonl",), order=10, looks_right=lambda text: '"current_steps"' in text)
def llama_factory(path: Path) -> History:
    """trainer_log.jsonl of LLaMA-Factory."""
    rows = Rows()
    max_steps = None
    torn = 0
    for line in read_text(path).splitlines():
        row = _row(line)
        step = whole(row.get("current_steps"))
        if step is None:
            torn += bool(line.strip())
            continue
        max_steps = whole(row.get("total_steps")) or max_steps
        values = {name: value for name, value in row.items() if name not in LEFT_OUT}
        values[RATE] = values.pop("lr", values.get(RATE))
        values["elapsed_seconds"] = seconds_of(row.get("elapsed_time"))
        epoch = number(row.get("epoch"))
        rows.add(step, values, NOT_LOGGED if epoch is None else epoch)
    if not len(rows):
        raise RunCorrupt(f"{path}: contains no row with 'current_steps'")
    curves, notes = rows.curves()
    clock = curves.pop("elapsed_seconds", None)
    pace = pace_between(clock.steps, clock.values, "elapsed_time") if clock is not None else None
    if torn:
        notes.append(Note("torn_lines", {"count": torn}))
    return make_history(path, "llama_factory", curves, notes, max_steps=max_steps, pace=pace)


def _row(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
