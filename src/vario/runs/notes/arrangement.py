"""The charts that people arranged for the runs of a folder, in its `.vario/charts.json`: beside the runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vario.core.errors import ConfigError, RunCorrupt
from vario.core.run_files.shapes import Maybe, read_json
from vario.runs.notes.beside import FOLDER, beside, replace_file

FILE = "charts.json"
FORMAT = 1
MOST_CHARTS = 16
MOST_CHARACTERS = 500
SHAPE: dict[str, Any] = {
    "format": int,
    "numbers": [str],
    "draw": Maybe([str]),
    "by": Maybe(str),
    "along": Maybe(str),
    "best": Maybe(bool),
    "log": Maybe(bool),
    "smooth": Maybe(float),
}


@dataclass(frozen=True)
class Arrangement:
    """Which charts, in which order, and how each is drawn; the fields are those of the page's address."""

    numbers: tuple[str, ...]
    """The logged numbers, one chart each."""
    draw: tuple[str, ...] = ()
    """`NUMBER|log or linear|SMOOTHING|wide or empty` for charts that differ from the rest."""
    by: str = ""
    along: str = ""
    best: bool = False
    log: bool = False
    smooth: float = 0.0


def read_arrangement(folder: Path) -> Arrangement | None:
    """Return the charts of a folder; None if nobody has arranged any, or if the file cannot be read."""
    try:
        found = read_json(folder / FOLDER / FILE, 2, SHAPE)
        return None if found is None or found.get("format") != FORMAT else checked_arrangement(found)
    except (RunCorrupt, ConfigError, OSError):
        return None


def write_arrangement(folder: Path, arrangement: Arrangement) -> None:
    """Store the charts of a folder."""
    text = json.dumps({"format": FORMAT, **dataclasses.asdict(arrangement)}, indent=1) + "\n"
    with beside(folder) as descriptor:
        replace_file(descriptor, FILE, text.encode())


def checked_arrangement(told: Mapping[str, Any]) -> Arrangement:
    """Return what was told as an arrangement; raises ConfigError for what cannot be one."""
    numbers, draw = _texts(told, "numbers"), _texts(told, "draw")
    if not numbers:
        raise ConfigError("numbers: expected at least one logged number")
    smooth = told.get("smooth") or 0.0
    if isinstance(smooth, bool) or not isinstance(smooth, (int, float)) or not 0 <= smooth < 1:
        raise ConfigError(f"smooth: expected a number from 0 to below 1, got {smooth!r}")
    by, along = (_text(key, told.get(key) or "") for key in ("by", "along"))
    best, log = (told.get(key) or False for key in ("best", "log"))
    if not isinstance(best, bool) or not isinstance(log, bool):
        raise ConfigError("best, log: expected true or false")
    return Arrangement(numbers, draw, by, along, best, log, float(smooth))


def _texts(told: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = told.get(key) or []
    if not isinstance(found, list) or len(found) > MOST_CHARTS:
        raise ConfigError(f"{key}: expected a list of at most {MOST_CHARTS} texts")
    return tuple(_text(key, each) for each in found)


def _text(key: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > MOST_CHARACTERS:
        raise ConfigError(f"{key}: expected a text of at most {MOST_CHARACTERS} characters")
    return value
