"""JSON Lines files beside a run's rows: what rules found, one line each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from vario.core.errors import RunCorrupt
from vario.core.run_files import no_links, read_bytes

LINES_DEPTH = 2
MOST_LINES_BYTES = 1 << 30


class LineFile:
    """Appends objects to a file, skipping those it already has."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._known = {line.decode(errors="replace") for line in _whole_lines(path)}

    def append(self, plain: Mapping[str, Any]) -> None:
        """Add one object; it is in the kernel when this returns."""
        line = json.dumps(plain, allow_nan=False)
        if line in self._known:
            return
        self._known.add(line)
        if self._file is None:
            if self._path.parent.is_symlink():
                raise RunCorrupt(f"{self._path.parent}: is a link; links inside a run are not followed")
            self._path.parent.mkdir(exist_ok=True)
            cut_torn_end(self._path)
            self._file = open(self._path, "a", encoding="utf8", opener=no_links)  # noqa: SIM115
        self._file.write(line + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def take_back(path: Path, first_step: int) -> None:
    """Drop the lines from this step on, which are trained again, and an incomplete last line."""
    lines = _whole_lines(path)
    kept = [line for line in lines if _step(line) < first_step]
    if len(kept) < len(lines) or not _ends_whole(path):
        _replace(path, kept)


def cut_torn_end(path: Path) -> None:
    """Drop an incomplete last line, which a kill left: the next one would be appended to it."""
    if not _ends_whole(path):
        _replace(path, _whole_lines(path))


def _whole_lines(path: Path) -> list[bytes]:
    return _content(path).split(b"\n")[:-1]


def _ends_whole(path: Path) -> bool:
    content = _content(path)
    return not content or content.endswith(b"\n")


def _content(path: Path) -> bytes:
    try:
        return read_bytes(path, LINES_DEPTH, MOST_LINES_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return b""


def _step(line: bytes) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _replace(path: Path, lines: Iterable[bytes]) -> None:
    half = path.with_name(f".{path.name}.tmp")
    with open(half, "wb", opener=no_links) as file:
        file.writelines(line + b"\n" for line in lines)
    os.replace(half, path)
