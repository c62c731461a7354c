"""Numbers of bytes, as people write them."""

from __future__ import annotations

import re

from vario.core.errors import ConfigError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def read_size(text: str, what: str) -> int:
    """Read a number of bytes, such as `500MB`."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{what}: expected a number of bytes such as 500MB, got {text!r}")
    return int(float(found[1]) * _UNITS[found[2].lower()])
