"""Commands: each file here is the command of that name, without a trailing underscore (`import_`).

Its docstring is the help (`vario --help` shows the first line), `EXAMPLES` ends the help, `prepare` adds the arguments
and `run` runs the command. Importing such a file must be cheap, so `run` imports what it needs.
"""

from __future__ import annotations

import argparse
import importlib
import keyword
import pkgutil
from typing import Protocol, cast

from vario.core.errors import ConfigError
from vario.core.text import suggestion

RENAMED = {"rank": "changes", "watch": "follow"}
"""Old names of commands; they still work in this release."""


class Command(Protocol):
    """What a file in this folder provides."""

    __doc__: str | None
    EXAMPLES: str

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command and return the exit code."""


def command_names() -> list[str]:
    """Return the names of all commands, sorted."""
    return sorted(module.name.rstrip("_") for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Command:
    """Return the command of that name, or raise ConfigError with the closest name."""
    names = command_names()
    if name not in names:
        raise ConfigError(f"unknown command '{name}'. {suggestion(name, names)} See `vario --help`.")
    file = f"{name}_" if keyword.iskeyword(name) else name
    return cast(Command, importlib.import_module(f"{__name__}.{file}"))
