"""Notes on runs, in `.vario/notes.json` of the folder that the runs are in, by the names of their folders.

A note belongs to the run with the id it was written for: a new run in a folder of the same name starts without one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vario.core.errors import ConfigError, RunCorrupt
from vario.core.run_files.shapes import Each, Maybe, read_json
from vario.runs.notes.beside import FOLDER

FILE = "notes.json"
FORMAT = 1
MOST_TAGS = 32
MOST_NAME = 200
MOST_NOTE = 20_000
SHAPE: dict[str, Any] = {
    "format": int,
    "runs": Each(
        {
            "id": Maybe(str),
            "title": Maybe(str),
            "tags": Maybe([str]),
            "text": Maybe(str),
            "is_starred": Maybe(bool),
            "is_archived": Maybe(bool),
            "by": Maybe(str),
        }
    ),
}


@dataclass(frozen=True)
class RunNote:
    """What was said about one run."""

    title: str = ""
    """A name to show instead of the folder's."""
    tags: tuple[str, ...] = ()
    text: str = ""
    is_starred: bool = False
    is_archived: bool = False
    by: str = ""
    """Who changed it last, if a server knew."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said."""
        return dataclasses.replace(self, by="") == NO_NOTE


NO_NOTE = RunNote()


def read_notes(folder: Path) -> dict[str, tuple[str | None, RunNote]]:
    """Return the notes of the runs in a folder: by folder name, the run's id and its note.

    A file that cannot be read is no reason to show no runs: it counts as empty here, and writing refuses it.
    """
    try:
        return stored_notes(folder)
    except (RunCorrupt, OSError):
        return {}


def stored_notes(folder: Path) -> dict[str, tuple[str | None, RunNote]]:
    """Return the notes; raises RunCorrupt for a damaged file."""
    found = read_json(folder / FOLDER / FILE, 2, SHAPE) or {}
    if int(found.get("format", FORMAT)) > FORMAT:
        raise RunCorrupt(f"{folder / FOLDER / FILE}: written by a newer vario; pip install -U vario")
    return {name: (entry.get("id"), _note(entry)) for name, entry in (found.get("runs") or {}).items()}


def note_of(notes: Mapping[str, tuple[str | None, RunNote]], name: str, run_id: str | None) -> RunNote:
    """Return the note of a run; empty if there is none, or if it is about an earlier run of that name."""
    stored_id, note = notes.get(name, (None, NO_NOTE))
    return note if stored_id is None or run_id is None or stored_id == run_id else NO_NOTE


def _note(entry: Mapping[str, Any]) -> RunNote:
    return RunNote(
        str(entry.get("title") or "")[:MOST_NAME],
        tuple(str(tag) for tag in entry.get("tags") or ())[:MOST_TAGS],
        str(entry.get("text") or "")[:MOST_NOTE],
        bool(entry.get("is_starred")),
        bool(entry.get("is_archived")),
        str(entry.get("by") or "")[:MOST_NAME],
    )


def changed_note(note: RunNote, changes: Mapping[str, Any]) -> RunNote:
    """Return a note with some fields changed; raises ConfigError for a field or value that cannot be."""
    known = [field.name for field in dataclasses.fields(RunNote) if field.name != "by"]
    checked: dict[str, Any] = {}
    for key, value in changes.items():
        if key not in known:
            raise ConfigError(f"note: unknown '{key}'. Known: {', '.join(known)}.")
        checked[key] = _checked(key, value)
    return dataclasses.replace(note, **checked)


def _checked(key: str, value: Any) -> Any:
    if key in ("is_starred", "is_archived"):
        if not isinstance(value, bool):
            raise ConfigError(f"{key}: expected true or false, got {value!r}")
        return value
    if key == "tags":
        if not isinstance(value, (list, tuple)) or not all(isinstance(tag, str) for tag in value):
            raise ConfigError(f"tags: expected a list of words, got {value!r}")
        tags = tuple(dict.fromkeys(tag.strip()[:60] for tag in value if tag.strip()))
        if len(tags) > MOST_TAGS:
            raise ConfigError(f"tags: {len(tags)} given; the limit is {MOST_TAGS}")
        return tags
    most = MOST_NAME if key == "title" else MOST_NOTE
    if not isinstance(value, str) or len(value) > most:
        raise ConfigError(f"{key}: expected a text of at most {most} characters")
    return value.strip()
