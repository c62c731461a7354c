"""Hyper-parameters as plain values: flat names, and values that JSON has."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

from vario.core.errors import ConfigError

MOST_PARAMS = 500
"""The most hyper-parameters of a run."""
MOST_CHARACTERS = 500
"""The longest text of one."""
MOST_ITEMS = 32
"""The longest list of one."""
MOST_DEPTH = 8

Plain = str | int | float | bool | list[Any] | None
Params = dict[str, Any]
"""By name: numbers, texts, true or false, null, or lists of these. Nested names have dots."""


def check_params(given: object) -> Params:
    """Return what a user gave as flat names and plain values; raises ConfigError if it is no table of names."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"params: expected a table such as {{lr = 0.1}}, got {given!r}")
    for name in given:
        if not isinstance(name, str):
            raise ConfigError(f"params: expected names, got {name!r}")
    found = flat(given, keeps_all=True)
    if len(found) > MOST_PARAMS:
        raise ConfigError(f"params: {len(found)} values; the limit is {MOST_PARAMS}")
    return found


def flat(table: Mapping[str, Any], keeps_all: bool = False) -> Params:
    """Return a nested table with dotted names and plain values; values of other kinds are left out.

    With `keeps_all` they are kept as text: somebody chose them.
    """
    return dict(_flat(table, "", MOST_DEPTH, keeps_all))


def _flat(table: Mapping[str, Any], above: str, depth: int, keeps_all: bool) -> Iterator[tuple[str, Plain]]:
    for key, value in table.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and depth:
            yield from _flat(value, f"{name}.", depth - 1, keeps_all)
            continue
        is_plain, plain = _plain(value)
        if is_plain:
            yield name, plain
        elif keeps_all:
            yield name, str(value)[:MOST_CHARACTERS]


def _plain(value: Any) -> tuple[bool, Plain]:
    """Whether a value is plain, and its plain form."""
    if isinstance(value, Enum):
        value = value.value
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()
    if value is None or isinstance(value, bool):
        return True, value
    if isinstance(value, int):
        return True, value if abs(value) < 1 << 63 else hex(value)[:MOST_CHARACTERS]
    if isinstance(value, float):
        return True, value if math.isfinite(value) else str(value)
    if isinstance(value, (str, PurePath)):
        return True, str(value)[:MOST_CHARACTERS]
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value[:MOST_ITEMS]]
        return all(is_plain for is_plain, _ in items), [item for _, item in items]
    return False, None


def without_credentials(options: Mapping[str, Any]) -> Params:
    """Return options as plain values, with names and passwords in addresses masked."""
    return {
        name: re.sub(r"//[^/@\s]+@", "//***@", value) if isinstance(value, str) else plain_or_text(value)
        for name, value in options.items()
    }


def plain_or_text(value: Any) -> Plain:
    """Return a value as JSON has it; one of another kind as text."""
    is_plain, plain = _plain(value)
    return plain if is_plain else str(value)[:MOST_CHARACTERS]


def read_assignments(text: str) -> Params:
    """Read `lr=0.1,name=first`: values are JSON where they can be. Raises ValueError for anything else."""
    found: Params = {}
    for word in _words(text):
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise ValueError(word)
        found[name.strip()] = read_value(value.strip())
    return found


def _words(text: str) -> list[str]:
    """Split at commas that are followed by another name: a value may be a list."""
    words: list[str] = []
    for piece in text.split(","):
        if "=" in piece or not words:
            words.append(piece)
        else:
            words[-1] += f",{piece}"
    return words


def read_value(text: str) -> Plain:
    """Return a number, true, false, null or a list if the text is one, else the text."""
    try:
        is_plain, plain = _plain(json.loads(text))
    except (ValueError, RecursionError):
        return text
    return plain if is_plain else text
