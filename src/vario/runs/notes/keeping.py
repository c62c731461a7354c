"""Writes notes, and moves runs to the trash and back."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vario.core.errors import ConfigError, RunError, RunNotFound
from vario.runs.files import status
from vario.runs.files.run_paths import run_folders
from vario.runs.notes.beside import FOLDER, beside, inner, opened, replace_file
from vario.runs.notes.notes import FILE, FORMAT, RunNote, changed_note, note_of, stored_notes

TRASH = "trash"


def write_note(run: Path, changes: Mapping[str, Any], by: str = "") -> RunNote:
    """Change the note of a run; returns it. `by` is who does so, where that is known."""
    folder, name = run.parent, run.name
    run_id = _id(run)
    with beside(folder) as descriptor:
        notes = stored_notes(folder)
        note = dataclasses.replace(changed_note(note_of(notes, name, run_id), changes), by=by)
        notes[name] = (run_id, note)
        _write(descriptor, notes)
    return note


def move_to_trash(run: Path) -> Path:
    """Move a run that has ended to the trash beside it; returns its new folder."""
    if run.is_symlink():
        raise RunError(f"{run}: is a link. Remove the link instead.")
    if _state(run) == "running":
        raise RunError(f"{run.name}: is still training. Stop it first.")
    with beside(run.parent) as descriptor:
        name = _moved(run.parent, run.name, descriptor)
    return run.parent / FOLDER / TRASH / name


def restore(folder: Path, name: str) -> Path:
    """Move a run from the trash back; returns its folder."""
    check_name(name)
    if not status.is_run(folder / FOLDER / TRASH / name):
        known = ", ".join(trashed(folder)) or "it is empty"
        raise RunNotFound(f"{name}: not in the trash of {folder}. In it: {known}.")
    if os.path.lexists(folder / name):
        raise RunError(f"{folder / name}: exists. Rename it before you restore the run of that name.")
    with beside(folder) as descriptor, inner(descriptor, TRASH) as trash, opened(folder) as above:
        os.rename(name, name, src_dir_fd=trash, dst_dir_fd=above)
    return folder / name


def trashed(folder: Path) -> list[str]:
    """Return the names of the runs in the trash of a folder."""
    return [found.name for found in run_folders(folder / FOLDER / TRASH)]


def check_name(name: str) -> None:
    """Raise ConfigError for a name that is a path."""
    if not name or Path(name).name != name or name in (".", "..") or "\0" in name:
        raise ConfigError(f"run: {name!r} is not the name of a folder")


def _moved(folder: Path, name: str, beside: int) -> str:
    check_name(name)
    with inner(beside, TRASH) as trash, opened(folder) as above:
        taken = set(os.listdir(trash))
        new, nth = name, 1
        while new in taken:
            nth += 1
            new = f"{name}-{nth}"
        os.rename(name, new, src_dir_fd=above, dst_dir_fd=trash)
    return new


def _write(descriptor: int, notes: Mapping[str, tuple[str | None, RunNote]]) -> None:
    entries = {
        name: {"id": run_id, **dataclasses.asdict(note)} for name, (run_id, note) in notes.items() if not note.is_empty
    }
    text = json.dumps({"format": FORMAT, "runs": entries}, indent=1) + "\n"
    replace_file(descriptor, FILE, text.encode())


def _id(run: Path) -> str | None:
    found = status.read_run_json(run).get("id")
    return None if found is None else str(found)


def _state(run: Path) -> str:
    return status.state(run, status.read_run_json(run), status.read_ranks(run))
