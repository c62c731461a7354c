"""What is read of the machine: the option `machine`, and the names of its numbers."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from vario.core.errors import ConfigError
from vario.core.text import unknown

MACHINE = "VARIO_MACHINE"
"""The environment variable with the option `machine` of runs that set none."""

PREFIX = "machine/"
"""Begins the names of plain numbers about the machine."""
HIGHEST, LOWEST = "_max", "_min"
"""End the name of the highest of several readings, or of what must not run out the lowest; their mean has none."""

ENERGY, COST, CARBON = (f"{PREFIX}energy_{name}" for name in ("watt_hours", "cost", "carbon_grams"))
"""Plain numbers: what the GPUs of a host have used since its process began to watch."""

SECONDS = 1.0
LEAST_SECONDS = 0.1
KEYS = ("seconds", "price", "carbon")

Options = dict[str, float]
"""Some of `KEYS`; the interval is always there."""


def default_machine() -> str | float:
    """Return the option of a run that sets none."""
    return os.environ.get(MACHINE) or SECONDS


def machine_options(wanted: object) -> Options | None:
    """Return what is read of the machine: the interval, and the price of energy if given; None for nothing."""
    if wanted is None or wanted is False or wanted == "off":
        return None
    if wanted is True:
        return {"seconds": SECONDS}
    if isinstance(wanted, str):
        try:
            wanted = float(wanted)
        except ValueError:
            raise ConfigError(f"machine: expected seconds, a table of {_KEYS} or 'off', got {wanted!r}") from None
    table: Mapping[Any, Any] = wanted if isinstance(wanted, Mapping) else {"seconds": wanted}
    for key, value in table.items():
        if key not in KEYS:
            raise ConfigError(unknown("machine", str(key), KEYS))
        least = LEAST_SECONDS if key == "seconds" else 0.0
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < math.inf:
            raise ConfigError(f"machine.{key}: expected a number of at least {least:g}, got {value!r}")
    return {"seconds": SECONDS, **{key: float(value) for key, value in table.items()}}


_KEYS = ", ".join(KEYS)
