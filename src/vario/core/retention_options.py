"""How long rows are kept in full: the option `retention`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vario.core.errors import ConfigError
from vario.core.text import unknown

ALL, TIERS = "all", "tiers"
COMPLETE = ("scalar",)
"""Quantities that stay complete unless they are named: losses and readings are few, and compared by their best."""
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?b?)", re.IGNORECASE)


@dataclass(frozen=True)
class Tiers:
    """What is kept in full of one quantity of one rank; everything else is downsampled."""

    steps: int = 1000
    """The newest steps at which it was recorded."""
    bytes: int = 512 * 10**6
    """As much on disk, however many steps that is."""
    around: int = 20
    """Steps before and after an incident, a session's start and a snapshot."""
    every: int = 500
    """One step in this many."""


KEYS = tuple(item.name for item in dataclasses.fields(Tiers))
_LEAST = {"steps": 1, "bytes": 0, "around": 0, "every": 1}

Options = str | dict[str, Any]


def retention_options(wanted: object, quantities: tuple[str, ...]) -> Options:
    """Check the option and return it in plain values; raises ConfigError."""
    if wanted in (ALL, TIERS):
        return str(wanted)
    if not isinstance(wanted, Mapping):
        raise ConfigError(f"retention: expected 'tiers', 'all' or a table such as {{steps = 2000}}, got {wanted!r}")
    found: dict[str, Any] = {}
    for key, value in wanted.items():
        if key in KEYS:
            found[key] = _whole(f"retention.{key}", value, _LEAST[key])
        elif key not in quantities:
            raise ConfigError(unknown("retention", str(key), [*KEYS, *quantities]))
        elif value in (ALL, TIERS):
            found[key] = str(value)
        elif isinstance(value, Mapping):
            for name in value:
                if name not in KEYS:
                    raise ConfigError(unknown(f"retention.{key}", str(name), KEYS))
            found[key] = {name: _whole(f"retention.{key}.{name}", one, _LEAST[name]) for name, one in value.items()}
        else:
            raise ConfigError(f"retention.{key}: expected 'tiers', 'all' or a table, got {value!r}")
    return found


def tiers_of(options: Options | None, quantity: str) -> Tiers | None:
    """Return the tiers of a quantity; None: every row is kept. Takes what `retention_options` returned."""
    if options is None or options == ALL:
        return None
    table = options if isinstance(options, Mapping) else {}
    chosen = table.get(quantity)
    if chosen == ALL or (chosen is None and quantity in COMPLETE):
        return None
    own = chosen if isinstance(chosen, Mapping) else {}
    return Tiers(**{key: value for key, value in {**table, **own}.items() if key in KEYS})


def _whole(key: str, value: object, least: int) -> int:
    number: object = value
    if isinstance(value, str) and key.endswith("bytes") and (match := _SIZE.fullmatch(value.strip())):
        unit = match[2].lower()
        number = int(float(match[1]) * _UNITS[unit if not unit or unit.endswith("b") else unit + "b"])
    if isinstance(number, float) and number % 1 == 0:
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise ConfigError(f"{key}: expected a whole number of at least {least}, got {value!r}")
    return number
