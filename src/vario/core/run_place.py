"""Where a new run goes: the options `directory`, `staging` and `name`."""

from __future__ import annotations

import os
from pathlib import Path

from vario.core.errors import ConfigError
from vario.core.text import shown
from vario.core.urls import checked_url, is_url

DIRECTORY = "VARIO_DIRECTORY"
"""Sets the folder of runs where no option does."""
DEFAULT_DIRECTORY = "vario_runs"
MOST_NAME_BYTES = 240
"""File systems allow 255 bytes, and files beside a run's folder have longer names."""


def default_directory() -> str:
    """Return the folder of a run that sets none."""
    return os.environ.get(DIRECTORY) or DEFAULT_DIRECTORY


def checked_directory(key: str, directory: object) -> object:
    """Return a folder or a URL as it is used; raises ConfigError for what is neither."""
    if not isinstance(directory, (str, os.PathLike)) or "\0" in str(directory):
        raise ConfigError(f"{key}: expected a folder, got {directory!r}")
    if not is_url(directory):
        return directory
    try:
        return checked_url(str(directory))
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None


def check_name(name: object) -> None:
    """Raise ConfigError for a name that is not a valid folder name."""
    if not isinstance(name, str) or not name or Path(name).name != name or name in ("..", ".jobs"):
        raise ConfigError(f"name: {name!r} is not a plain folder name. The folder above it is `directory`.")
    if shown(name) != name or not set("\n\t").isdisjoint(name):
        raise ConfigError(f"name: {name!a} contains control or invisible characters")
    if len(name.encode()) > MOST_NAME_BYTES:
        raise ConfigError(f"name: '{name[:40]}...' has {len(name.encode())} bytes; the limit is {MOST_NAME_BYTES}")
