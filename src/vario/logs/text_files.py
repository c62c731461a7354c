"""Read text files: whatever their bytes, and with a clear error if they are empty."""

from __future__ import annotations

import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from datetime import datetime
from pathlib import Path
from typing import Any

from vario.core.errors import RunCorrupt
from vario.logs.history import Curve, History, Note, Pace, last_epoch, last_step
from vario.logs.rows import NOT_LOGGED, number, whole

ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def read_text(path: Path) -> str:
    """Read a file's text without colour codes; carriage returns of progress bars become line ends."""
    return decoded(read_content(path))


def read_content(path: Path) -> bytes:
    """Read the bytes of a file; raises if it is empty."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunCorrupt(f"{path}: cannot be read: {error.strerror}") from error
    if not content.strip():
        raise RunCorrupt(f"{path}: the file is empty")
    return content


def decoded(content: bytes) -> str:
    """Decode bytes to text, replacing invalid ones; on Windows they may begin with a byte order mark."""
    encoding = "utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig"
    return ESCAPES.sub("", content.decode(encoding, errors="replace")).replace("\r", "\n")


def files_in(place: Path, pattern: str) -> list[Path]:
    """Return the files of a folder that match, or the file itself; no pipes, which would block."""
    return sorted(path for path in place.glob(pattern) if path.is_file()) if place.is_dir() else [place]


def written_at(path: Path) -> float:
    """Return when a file was last written; 0 if it no longer exists."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def unix_time(text: str) -> float:
    """Parse a local time such as `2026-02-28 16:46:59`, with or without a fraction, to Unix seconds; NaN if invalid."""
    moment, _, fraction = text.replace(",", ".").replace("T", " ").partition(".")
    try:
        return datetime.fromisoformat(moment).timestamp() + float(f"0.{fraction or 0}")
    except ValueError:
        return NOT_LOGGED


def seconds_of(text: Any) -> float | None:
    """Parse `MM:SS`, `H:MM:SS` or `2 days, H:MM:SS` to seconds; None for anything else."""
    if not isinstance(text, str) or not text:
        return None
    days, _, clock = text.rpartition(",")
    seconds = 0.0
    for part in clock.split(":"):
        found = number(part)
        if found is None:
            return None
        seconds = seconds * 60 + found
    return seconds + 86400 * (whole(days.split()[0]) or 0 if days else 0)


def make_history(
    path: Path,
    name: str,
    curves: dict[str, Curve],
    notes: list[Note],
    max_steps: int | None = None,
    num_epochs: float | None = None,
    pace: Pace | None = None,
    written: float | None = None,
) -> History:
    """Build a History for a log that does not say whether it is finished."""
    if not curves:
        raise RunCorrupt(f"{path}: contains no row of numbers yet")
    step = last_step(curves)
    return History(
        path=path,
        format=name,
        curves=curves,
        step=step,
        epoch=last_epoch(curves),
        max_steps=max_steps,
        num_epochs=num_epochs,
        pace=pace,
        is_finished=step >= max_steps if step is not None and max_steps is not None else None,
        written=written_at(path) if written is None else written,
        notes=tuple(notes),
    )
