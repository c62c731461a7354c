"""The shapes of a run's JSON files: their keys, and the type of each value.

Keys may be missing, and there may be others: the format grows. A value of the wrong type is rejected on reading, so
that later code can rely on it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vario.core.errors import RunCorrupt
from vario.core.run_files import read_bytes
from vario.core.run_files.columns import MOST_STEP

MOST_RANKS = 1 << 20
MOST_JSON_BYTES = 64 << 20
"""The structure of a model with 100,000 parameters takes 20 MB."""
WITHOUT = "Move the file away to read the rest of the run."


@dataclass(frozen=True)
class Maybe:
    """A value, or null."""

    shape: Any


@dataclass(frozen=True)
class Each:
    """An object with any keys, whose values have one shape."""

    shape: Any


@dataclass(frozen=True)
class Whole:
    """A whole number in a range."""

    lowest: int = -MOST_STEP
    highest: int = MOST_STEP


STEP = Whole(0)
RANK = Whole(0, MOST_RANKS)
SESSION: dict[str, Any] = {
    "first_step": STEP,
    "started": Maybe(float),
    "job": Maybe(str),
    "params": Maybe({}),
    "param_sources": Maybe(Each(str)),
}
RUN: dict[str, Any] = {
    "format": int,
    "id": Maybe(str),
    "group": Maybe(str),
    "started": Maybe(float),
    "ended": Maybe(float),
    "state": Maybe(str),
    "error": Maybe(str),
    "world_size": Maybe(Whole(1, MOST_RANKS)),
    "mesh": Maybe(Each(Whole(0))),
    "config": Maybe({"quantities": [str], "statistics": Maybe([str]), "ranks": Maybe([RANK]), "eps": Maybe(float)}),
    "versions": Maybe(Each(Maybe(str))),
    "not_offered": Maybe([{"quantity": str, "missing": str}]),
    "command": Maybe(str),
    "host": Maybe(str),
    "sessions": Maybe([SESSION]),
}
RANK_STATUS: dict[str, Any] = {
    "world_size": Maybe(Whole(1, MOST_RANKS)),
    "coordinates": Maybe(Each(Whole(0))),
    "host": Maybe(str),
    "pid": Maybe(Whole(0, (1 << 31) - 1)),
    "machine": Maybe(str),
    "born": Maybe(Whole(0)),
    "state": Maybe(str),
    "error": Maybe(str),
    "ended": Maybe(float),
    "last_step": Maybe(STEP),
    "session": Maybe(Whole(0)),
    "opened": Maybe(float),
    "parts_off": Maybe([{"part": Maybe(str), "step": Maybe(Whole()), "error": Maybe(str)}]),
    "dropped_steps": Maybe(Whole(0)),
}
STRUCTURE: dict[str, Any] = {
    "engine": Maybe(str),
    "modules": [{"name": str, "class": Maybe(str), "num_parameters": Maybe(Whole(0))}],
    "parameters": [
        {
            "name": str,
            "shape": Maybe([Whole(0)]),
            "dtype": Maybe(str),
            "shared_with": Maybe([str]),
            "replicas": Maybe(Whole(0)),
        }
    ],
    "groups": Maybe([[RANK]]),
}
COLLECTIVES: dict[str, Any] = {
    "collectives": Maybe(
        [
            {
                "target": str,
                "operation": str,
                "site": str,
                "group": str,
                "ranks": [RANK],
                "dtype": str,
                "num_bytes": Whole(0),
                "stack": [str],
            }
        ]
    )
}

_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


class _Wrong(Exception):
    """A value of the wrong type; its path is added while the exception propagates."""

    def __init__(self, wanted: str, found: object) -> None:
        super().__init__(wanted)
        self.wanted = wanted
        self.found = found
        self.where: list[str] = []


def read_json(path: Path, depth: int, shape: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Read the object in a JSON file `depth` levels below the run's folder; None if there is no such file."""
    try:
        content = json.loads(read_bytes(path, depth, MOST_JSON_BYTES).decode("utf8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except RecursionError:
        raise RunCorrupt(f"{path}: not readable as JSON: nested too deeply. {WITHOUT}") from None
    except ValueError as error:
        raise RunCorrupt(f"{path}: not readable as JSON: {error}. {WITHOUT}") from error
    if not isinstance(content, dict):
        raise RunCorrupt(f"{path}: expected an object, found {type(content).__name__}")
    if shape is not None:
        check_shape(path, content, shape)
    return content


def check_shape(path: object, content: Mapping[str, Any], shape: Mapping[str, Any]) -> None:
    """Raise RunCorrupt for a value of the wrong type, with its path."""
    try:
        _check(content, shape)
    except _Wrong as wrong:
        text = repr(wrong.found)
        raise RunCorrupt(
            f"{path}: '{'.'.join(reversed(wrong.where))}': expected {wrong.wanted}, got "
            f"{text if len(text) <= 40 else type(wrong.found).__name__}. "
            f"Move the file away to read the rest of the run."
        ) from None


def _check(value: Any, shape: Any) -> None:
    if type(shape) is Maybe:
        if value is None:
            return
        shape = shape.shape
    if type(shape) is list:
        if not isinstance(value, list):
            raise _Wrong("a list", value)
        for at, item in enumerate(value):
            _check_at(at, item, shape[0])
    elif isinstance(shape, (Each, dict)):
        if not isinstance(value, dict):
            raise _Wrong("an object", value)
        for key in value if isinstance(shape, Each) else shape.keys() & value.keys():
            _check_at(key, value[key], shape.shape if isinstance(shape, Each) else shape[key])
    elif not _is_plain(value, shape):
        raise _Wrong(_WORDS[shape] if isinstance(shape, type) else "a whole number in range", value)


def _check_at(key: object, value: Any, shape: Any) -> None:
    try:
        _check(value, shape)
    except _Wrong as wrong:
        wrong.where.append(str(key))
        raise


def _is_plain(value: Any, shape: Any) -> bool:
    if isinstance(shape, Whole):
        return isinstance(value, int) and not isinstance(value, bool) and shape.lowest <= value <= shape.highest
    if shape is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and _is_finite(value)
    return isinstance(value, shape) and (shape is bool or not isinstance(value, bool))


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
