"""Output that is written completely or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Provide a folder that becomes `path` at the end; work that fails or is interrupted leaves nothing behind.

    `path` must be new, or an empty folder.
    """
    is_there = path.is_dir()
    place = path if is_there else path.parent
    name = path.resolve().name
    # One level deeper, so that incomplete output does not look like a run or like events in a listing.
    hidden = place / f".{name}.unfinished-{os.getpid()}"
    with made_folder(place):
        try:
            unfinished = hidden / name
            unfinished.mkdir(parents=True)
            yield unfinished
            if is_there:
                for entry in list(unfinished.iterdir()):
                    os.rename(entry, path / entry.name)
            else:
                os.rename(unfinished, path)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)


@contextmanager
def made_folder(path: Path) -> Iterator[None]:
    """Create a folder and its parents; if the work in it fails, remove those that were created."""
    missing = []
    place = path
    while not place.exists():
        missing.append(place)
        place = place.parent
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in missing:
            with suppress(OSError):  # another process put something there
                folder.rmdir()
        raise
