"""Where is the run? From what a person typed to a run's folder."""

from __future__ import annotations

import os
from pathlib import Path

from vario.core.errors import RunNotFound
from vario.core.text import suggestion
from vario.runs.files.status import is_run, read_run_json

DEFAULT_DIRECTORY = "vario_runs"
MAX_DEPTH = 5
MAX_FOLDERS = 20_000
"""So many folders are looked into for runs below a folder; a data set may have millions."""


def run_folders(directory: Path) -> list[Path]:
    """Folders right below this one that hold a run, by name."""
    try:
        return sorted(entry for entry in directory.iterdir() if is_run(entry))
    except (OSError, ValueError):
        return []  # there is none, it is not ours to read, or no file can have that name


def runs_below(directory: Path) -> list[Path]:
    """Folders that hold a run, anywhere below this one; hidden folders, and links that lie deeper, are not followed."""
    found = {*run_folders(directory)}
    level = [directory] if os.path.isdir(directory) else []
    num_seen = 0
    for _ in range(MAX_DEPTH):
        inner: list[Path] = []
        for folder in level:
            for entry in _folders_in(folder):
                num_seen += 1
                if num_seen > MAX_FOLDERS:
                    return sorted(found)
                if entry not in found and not is_run(entry):
                    inner.append(entry)
                else:
                    found.add(entry)
        level = inner
    return sorted(found)


def _folders_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [one.name for one in entries if one.is_dir(follow_symlinks=False) and not one.name.startswith(".")]
    except OSError:
        return []  # not ours to read
    return [folder / name for name in sorted(names)]


def is_found(path: str | os.PathLike[str]) -> bool:
    """Whether there is a run at a path, as `find_run` looks for it."""
    try:
        find_run(path)
    except RunNotFound:
        return False
    return True


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
    if os.path.isdir(place) and (deeper := runs_below(place)):
        others = f", and {len(deeper) - 1} more" if len(deeper) > 1 else ""
        return f"{place}: not a run, and no runs right in it, but deeper: {deeper[0]}{others} (`vario ls {place}`)."
    if os.path.isdir(place):
        found = f"{place}: not a run, and no runs in it. A run is a folder with a run.json and rank0/ in it."
    elif os.path.exists(place):
        found = f"{place}: not a folder. A run is a folder with a run.json and rank0/ in it."
    else:
        found = f"{place}: there is no such folder."
    for directory in (place.parent, Path(DEFAULT_DIRECTORY)):
        names = [folder.name for folder in run_folders(directory)]
        if names:
            return f"{found} In {directory}: {suggestion(place.name, names)}"
    return found
