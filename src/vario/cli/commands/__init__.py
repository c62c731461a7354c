"""Commands: a file here is a command of the same name; an underscore at its end is not part of it (`import_`).

Its docstring is the help (the first line is what `vario --help` shows), `EXAMPLES` ends that help, `prepare` adds
its arguments and `run` does it. Importing such a file must be cheap, so `run` imports what it needs by itself.
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
"""Commands by the names they had; these still work in this release."""


class Command(Protocol):
    """What a file in this folder offers."""

    __doc__: str | None
    EXAMPLES: str

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; the answer is the exit code."""


def command_names() -> list[str]:
    """Names of all commands, sorted."""
    return sorted(module.name.rstrip("_") for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Command:
    """The command of that name, or a ConfigError that suggests the nearest one."""
    names = command_names()
    if name not in names:
        raise ConfigError(f"unknown command '{name}'. {suggestion(name, names)} See `vario --help`.")
    file = f"{name}_" if keyword.iskeyword(name) else name
    return cast(Command, importlib.import_module(f"{__name__}.{file}"))
