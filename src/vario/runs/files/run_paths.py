"""Resolves what a person typed to a run's folder."""

from __future__ import annotations

import os
from pathlib import Path

from vario.core.errors import RunNotFound
from vario.core.masking import masked
from vario.core.text import suggestion
from vario.core.urls import is_url
from vario.remote.mirror.mirror import mirrored
from vario.runs.files.status import is_run, read_run_json

DEFAULT_DIRECTORY = "vario_runs"
MAX_DEPTH = 5
MAX_FOLDERS = 20_000
"""The most folders to search for runs below a folder; a data set may have millions."""


def run_folders(directory: Path) -> list[Path]:
    """Return the direct subfolders that contain a run, by name."""
    try:
        return sorted(entry for entry in directory.iterdir() if is_run(entry))
    except (OSError, ValueError):
        return []  # missing, unreadable, or not a possible file name


def runs_below(directory: Path) -> list[Path]:
    """Return the folders below this one that contain a run; skips hidden folders and links in subfolders."""
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
        return []  # unreadable
    return [folder / name for name in sorted(names)]


def local_folder(place: str | os.PathLike[str], follow: bool = False) -> Path:
    """Return a folder to read runs from: the one that is named, or the mirror of a URL.

    `follow`: keep up with a mirror on a thread, for whoever reads for long.
    """
    return mirrored(place, follow) if isinstance(place, str) and is_url(place) else Path(place)


def is_found(path: str | os.PathLike[str]) -> bool:
    """Whether `find_run` finds a run at a path."""
    try:
        find_run(path)
    except RunNotFound:
        return False
    return True


def find_run(path: str | os.PathLike[str]) -> Path:
    """Find the run at a path or URL: its folder, a folder of runs (its latest run), or a name under ./vario_runs."""
    place = local_folder(path)
    by_name = Path(DEFAULT_DIRECTORY) / place
    for candidate in (place, by_name):
        if is_run(candidate):
            return candidate
        if folders := run_folders(candidate):
            return max(folders, key=lambda folder: float(read_run_json(folder).get("started") or 0))
    if isinstance(path, str) and is_url(path):
        raise RunNotFound(f"{masked(path)}: not a run, and contains no runs. `vario ls` lists those in its subfolders.")
    raise RunNotFound(_nothing_at(place))


def _nothing_at(place: Path) -> str:
    if os.path.isdir(place) and (deeper := runs_below(place)):
        others = f", and {len(deeper) - 1} more" if len(deeper) > 1 else ""
        return f"{place}: not a run. There are runs in its subfolders: {deeper[0]}{others} (`vario ls {place}`)."
    if os.path.isdir(place):
        found = f"{place}: not a run, and contains no runs. A run is a folder with a run.json and rank0/ in it."
    elif os.path.exists(place):
        found = f"{place}: not a folder. A run is a folder with a run.json and rank0/ in it."
    else:
        found = f"{place}: no such folder."
    for directory in (place.parent, Path(DEFAULT_DIRECTORY)):
        names = [folder.name for folder in run_folders(directory)]
        if names:
            return f"{found} In {directory}: {suggestion(place.name, names)}"
    return found
