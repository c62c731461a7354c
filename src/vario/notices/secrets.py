"""Secret options: `env:NAME` names an environment variable, anything else is masked."""

from __future__ import annotations

import os
from typing import Any

from vario.core.errors import ConfigError

PREFIX = "env:"
MASK = "***"


def is_named(value: Any) -> bool:
    """Whether a value names an environment variable."""
    return isinstance(value, str) and value.startswith(PREFIX)


def reveal(value: str, key: str) -> str:
    """Return the value, or the one of the environment variable it names; raises ConfigError if that is not set."""
    if not is_named(value):
        return value
    name = value.removeprefix(PREFIX)
    found = os.environ.get(name)
    if not found:
        raise ConfigError(
            f"{key}: the environment variable '{name}' is not set. Set it in the environment of the training job."
        )
    return found


def mask(value: Any) -> str:
    """Return what may be shown of a secret: the name of its environment variable, or a mask."""
    return str(value) if is_named(value) else MASK


def check_text(value: Any, key: str, what: str) -> None:
    """Raise ConfigError for anything but non-empty text."""
    if not isinstance(value, str) or not value.removeprefix(PREFIX).strip():
        raise ConfigError(f"{key}: expected {what} or env:NAME, got {value!r}")
