"""Arguments that several commands share, and how to find the run a user means."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vario.core.errors import ConfigError, RunNotFound
from vario.core.urls import is_url

if TYPE_CHECKING:
    from vario.runs.run import Run

DEFAULT_DIRECTORY = "vario_runs"


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the run to read."""
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help=f"folder or URL of a run, or its name under {DEFAULT_DIRECTORY} (default: the latest run)",
    )


def add_directory(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the folder of runs to read; `local_folder` finds it."""
    told = f"{what} (default: {DEFAULT_DIRECTORY})"
    parser.add_argument("directory", metavar="DIR", nargs="?", default=DEFAULT_DIRECTORY, help=told)


def add_directories(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the folders of runs to serve."""
    parser.add_argument(
        "directories",
        metavar="DIR",
        nargs="*",
        help=f"{what}; of several, each may have a name: NAME=DIR (default: {DEFAULT_DIRECTORY})",
    )


def named_folders(directories: Sequence[str]) -> Path | dict[str, Path]:
    """Return the folder, or several by name; raises RunNotFound for one that is missing."""
    found: dict[str, Path] = {}
    for text in directories or [DEFAULT_DIRECTORY]:
        place = place_of(text)
        folder = local_folder(place, follow=True)
        if not os.path.isdir(folder):
            raise RunNotFound(f"{folder}: no such folder. Start a run with `vario run`, or name another folder.")
        if len(directories) < 2:
            return folder
        name = text.removesuffix(place).removesuffix("=") or Path(place).resolve().name
        if name in found:
            raise ConfigError(f"two folders are called '{name}'. Name them: {name}1={found[name]} {name}2={folder}")
        if not name or name.startswith(".") or set(name) & set('/\\"\0') or not name.isprintable():
            raise ConfigError(
                f"'{name}' is no name for a folder of runs. Write NAME={folder}, with letters and digits."
            )
        found[name] = folder
    return found


def place_of(text: str) -> str:
    """Return the folder or URL of `DIR` or `NAME=DIR`."""
    _, equals, place = text.partition("=")
    return text if os.path.isdir(text) or not equals or is_url(text) else place


def local_folder(name: str, follow: bool = False) -> Path:
    """Return the folder that was named, or the local copy of the URL; `follow`: keep up with it."""
    from vario.runs.files.run_paths import local_folder

    return local_folder(name, follow)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json, which every reading command has."""
    parser.add_argument(
        "--json", action="store_true", help='print JSON; NaN and infinities become "nan", "inf" and "-inf"'
    )


def find_run(name: str | None) -> Run:
    """Find the run named by a folder, a name, a folder of runs (its latest run) or nothing (the latest run)."""
    from vario.runs.run import open_run

    if name is None and not Path(DEFAULT_DIRECTORY).is_dir():
        raise RunNotFound(f"no run under ./{DEFAULT_DIRECTORY} yet. Start one with `vario run`, or name a folder.")
    return open_run(name or DEFAULT_DIRECTORY)
