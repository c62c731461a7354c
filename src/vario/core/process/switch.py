"""The off switch: `VARIO=off` in the environment, or `enabled=False`."""

from __future__ import annotations

import logging
import os

log = logging.getLogger("vario")

VARIABLE = "VARIO"
_OFF = ("off", "0", "false", "no")
_ON = ("on", "1", "true", "yes", "")
_told: set[str] = set()


def is_off(enabled: bool = True) -> bool:
    """Whether watching is off, by the environment or by `enabled`."""
    word = os.environ.get(VARIABLE, "").strip().lower()
    if word not in (*_ON, *_OFF) and word not in _told:
        _told.add(word)
        log.warning("%s=%s is unknown and has no effect. Use off or on.", VARIABLE, os.environ[VARIABLE])
    return not enabled or word in _OFF
