"""Summaries of runs that have ended, in `.vario/summaries.json` beside them: a thousand runs are listed at once.

The file is a cache: it can be deleted, and what it says about a run counts only while the run's folder is as it was.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vario.core.errors import RunCorrupt, RunError
from vario.core.process.ending import OVER
from vario.core.run_files import read_bytes
from vario.runs.findings.rank_comparison import place_of_comparison
from vario.runs.notes.beside import FOLDER, beside, replace_file
from vario.runs.table.summary import RunSummary
from vario.runs.views.status.brief import Brief
from vario.runs.views.status.courses import Course
from vario.runs.views.status.vitals import Pace

FILE = "summaries.json"
FORMAT = 1
MOST_BYTES = 32 << 20
MOST_RUNS = 5000
LEAST_NEW = 50
"""The file is written when this many runs had to be read; fewer are read fast enough."""

Place = tuple[tuple[str, int, int], ...]
"""Names, sizes and modification times of what is at the top of a run, and in its folder `watch`."""


@dataclass(frozen=True)
class _Entry:
    place: Place
    summary: RunSummary


class SummaryFile:
    """The summaries of the ended runs below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entries = _read_file(folder)
        self._num_new = 0

    def read(self, name: str, label: str, path: Path, read: Callable[[], RunSummary]) -> RunSummary:
        """Return the summary of a run: the stored one if its folder has not changed, else the one that is read now.

        `name` is its path below the folder, and `label` what identifies it where it is shown.
        """
        place = place_of(path)
        entry = self._entries.get(name)
        if entry is not None and entry.place == place:
            return replace(entry.summary, run=label)
        summary = read()
        if summary.brief.state in OVER:
            self._entries[name] = _Entry(place, summary)
            self._num_new += 1
        return summary

    def save(self, names: Iterable[str]) -> None:
        """Write the file if that saves time: the summaries of these runs, of very many the last ones."""
        if self._num_new < LEAST_NEW:
            return
        self._num_new = 0
        kept = [name for name in names if name in self._entries][-MOST_RUNS:]
        content = json.dumps({"format": FORMAT, "runs": {name: _encode(self._entries[name]) for name in kept}})
        if len(content) > MOST_BYTES:
            return
        # In somebody else's folder runs are read anew each time.
        with suppress(RunError), beside(self._folder) as descriptor:
            replace_file(descriptor, FILE, content.encode())


def place_of(path: Path) -> Place:
    """Return what changes when an ended run does: it is resumed, replaced, followed, or its ranks are compared."""
    compared = place_of_comparison(path)
    found: list[tuple[str, int, int]] = [] if compared is None else [compared]
    for folder in (path, path / "watch"):
        try:
            found.append((folder.name, 0, os.stat(folder).st_mtime_ns))
            with os.scandir(folder) as entries:
                for entry in entries:
                    stat = entry.stat(follow_symlinks=False)
                    found.append((entry.name, stat.st_size, stat.st_mtime_ns))
        except OSError:
            continue
    return tuple(sorted(found))


def _read_file(folder: Path) -> dict[str, _Entry]:
    """A file that cannot be used counts as empty: it is written anew."""
    try:
        content = json.loads(read_bytes(folder / FOLDER / FILE, 2, MOST_BYTES))
        if content["format"] != FORMAT:
            return {}
        return {str(name): _decode(entry) for name, entry in content["runs"].items()}
    except (OSError, RunCorrupt, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


def _encode(entry: _Entry) -> dict[str, Any]:
    summary, brief = entry.summary, entry.summary.brief
    numbers = {
        name: (course.first, course.last, course.lowest, course.highest, course.num_points)
        for name, course in brief.numbers.items()
    }
    return {
        "place": entry.place,
        "run": (summary.run, summary.name, summary.group, summary.id),
        "incidents": summary.incidents,
        "brief": {**vars(brief), "pace": vars(brief.pace), "numbers": numbers},
    }


def _decode(entry: Mapping[str, Any]) -> _Entry:
    """Raises ValueError, or what a value of another kind leads to."""
    run, name, group, run_id = entry["run"]
    incidents = {_text(key): _whole(count) for key, count in entry["incidents"].items()}
    place = tuple((_text(file), _whole(size), _whole(changed)) for file, size, changed in entry["place"])
    brief = _decode_brief(entry["brief"])
    summary = RunSummary(_text(run), _text(name), _maybe_text(group), brief, Counter(incidents), _maybe_text(run_id))
    return _Entry(place, summary)


def _decode_brief(told: Mapping[str, Any]) -> Brief:
    if told["state"] not in OVER or type(told["params"]) is not dict:
        raise ValueError("no brief of a run that has ended")
    pace = told["pace"]
    return Brief(
        state=told["state"],
        started=_number(told["started"]),
        ended=_maybe_number(told["ended"]),
        error=_maybe_text(told["error"]),
        world_size=_whole(told["world_size"]),
        host=_text(told["host"]),
        pace=Pace(
            None if pace["step"] is None else _whole(pace["step"]),
            None if pace["total_steps"] is None else _whole(pace["total_steps"]),
            *(_maybe_number(pace[key]) for key in ("progress", "steps_per_second", "eta_seconds")),
        ),
        loss=_maybe_number(told["loss"]),
        loss_is_found=told["loss_is_found"] is True,
        spark=tuple(_numbers(told["spark"])),
        params=told["params"],
        numbers={name: _course(figures) for name, figures in told["numbers"].items()},
        **{key: _text(told.get(key, "")) for key in ("command", "commit", "branch")},
    )


_PLAIN = {float, int}


def _numbers(values: Any) -> list[float]:
    if type(values) is not list or not set(map(type, values)) <= _PLAIN:
        raise ValueError("expected numbers")
    return list(map(float, values))


def _course(figures: Any) -> Course:
    first, last, lowest, highest, num_points = _numbers(figures)
    return Course(first, last, lowest, highest, int(num_points))


def _number(value: Any) -> float:
    return _numbers([value])[0]


def _maybe_number(value: Any) -> float | None:
    return None if value is None else _number(value)


def _whole(value: Any) -> int:
    if type(value) is not int or abs(value) > 1 << 63:
        raise ValueError("expected a whole number")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("expected a text")
    return value


def _maybe_text(value: Any) -> str | None:
    return None if value is None else _text(value)
