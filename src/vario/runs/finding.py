"""Where is the run? From what a person typed to a run's folder."""

from __future__ import annotations

import os
from pathlib import Path

from vario.errors import RunNotFound
from vario.runs.status import is_run, read_run_json
from vario.text import suggestion

DEFAULT_DIRECTORY = "vario_runs"


def run_folders(directory: Path) -> list[Path]:
    """Folders right below this one that hold a run, by name."""
    if not directory.is_dir():
        return []
    return sorted(entry for entry in directory.iterdir() if is_run(entry))


def find_run(path: str | os.PathLike[str]) -> Path:
    """The run at a path: a run's folder, a folder of runs (the newest counts), or a name under ./vario_runs."""
    place = Path(path)
    by_name = Path(DEFAULT_DIRECTORY) / place
    for candidate in (place, by_name):
        if is_run(candidate):
            return candidate
        if folders := run_folders(candidate):
            return max(folders, key=lambda folder: float(read_run_json(folder).get("started") or 0))
    raise RunNotFound(_nothing_at(place))


def _nothing_at(place: Path) -> str:
    if place.is_dir():
        found = f"{place}: not a run, and no runs in it. A run is a folder with a run.json and rank0/ in it."
    elif place.exists():
        found = f"{place}: not a folder. A run is a folder with a run.json and rank0/ in it."
    else:
        found = f"{place}: there is no such folder."
    for directory in (place.parent, Path(DEFAULT_DIRECTORY)):
        names = [folder.name for folder in run_folders(directory)]
        if names:
            return f"{found} In {directory}: {suggestion(place.name, names)}"
    return found
