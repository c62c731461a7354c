"""Which steps of a run stay in full for what happened there: incidents, snapshots, and starts of sessions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vario.core.errors import RunError
from vario.core.merged_parts import Span
from vario.core.run_files import list_names, read_bytes
from vario.core.run_format import INCIDENTS, SNAPSHOTS
from vario.store.follow_log import FOLDER
from vario.store.line_files import LINES_DEPTH, MOST_LINES_BYTES

SNAPSHOT = re.compile(r"step-([0-9]{1,15})\.(?:json|npz)")
NOTE_STEPS = 2
"""Notes are many: fewer steps are kept around each."""
NOTE = "note"


def kept_windows(rank_folder: Path, first_steps: Sequence[int], around: int) -> list[Span]:
    """Return first and last step of each range that stays: this rank's, the leading rank's and the watcher's."""
    run = rank_folder.parent
    windows = [(step - around, step + around) for step in first_steps]
    for folder in {rank_folder, run / "rank0", run / FOLDER}:
        for incident in _lines(folder / INCIDENTS):
            width = min(around, NOTE_STEPS) if incident.get("severity") == NOTE else around
            windows += [(step - width, step + width) for step in _steps(incident)]
    for name in list_names(rank_folder / SNAPSHOTS, 2):
        if match := SNAPSHOT.fullmatch(name):
            windows.append((int(match[1]) - around, int(match[1]) + around))
    return windows


def _steps(incident: dict[str, Any]) -> Iterator[int]:
    """The steps at which it began, was raised and was seen last."""
    lead = incident.get("lead")
    for table in (incident, lead if isinstance(lead, dict) else {}):
        for key in ("step", "last_step", "since"):
            step = table.get(key)
            if isinstance(step, int) and not isinstance(step, bool):
                yield step


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        content = read_bytes(path, LINES_DEPTH, MOST_LINES_BYTES)
    except (OSError, RunError):
        return
    for line in content.split(b"\n"):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found
