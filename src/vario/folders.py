"""Where a new run goes."""

from __future__ import annotations

import os
import time
from pathlib import Path


def run_folder(directory: Path, name: str | None, world_size: int) -> Path:
    """The folder of a run: the given name, or the time it started, the same on all ranks of one launcher."""
    if name is not None:
        return directory / name
    started = _launcher_start() if world_size > 1 else time.time()
    stem = time.strftime("%Y%m%d-%H%M%S", time.localtime(started))
    if world_size > 1:
        return directory / stem
    folder, nth = directory / stem, 1
    while folder.exists():
        nth += 1
        folder = directory / f"{stem}-{nth}"
    return folder


def _launcher_start() -> float:
    """When the parent process started: what the ranks of one torchrun have in common without talking."""
    try:
        return Path(f"/proc/{os.getppid()}").stat().st_ctime
    except OSError:
        return time.time()
