"""argparse without abbreviated flags, with wrapped help, and with a suggestion for a mistyped flag."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from typing import Any, NoReturn

from vario.core.errors import ConfigError
from vario.core.text import suggestion

HELP_WIDTH = 100


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of docstrings and examples; uses the width of the terminal or COLUMNS."""

    def __init__(self, prog: str) -> None:
        width = shutil.get_terminal_size((HELP_WIDTH, 0)).columns
        super().__init__(prog, max_help_position=32, width=min(width, HELP_WIDTH))


class Parser(argparse.ArgumentParser):
    """A parser that raises ConfigError, so that errors are printed in one place."""

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        super().__init__(prog, description=description, epilog=epilog, formatter_class=_Formatter, allow_abbrev=False)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse, or raise a ConfigError that suggests the closest known flag."""
        parsed, rest = self.parse_known_args(args, namespace)
        if rest:
            flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
            word = rest[0].partition("=")[0]
            hint = suggestion(word, flags) if word.startswith("-") else f"See `{self.prog} --help`."
            self.error(f"unknown argument '{word}'. {hint}")
        return parsed

    def error(self, message: str) -> NoReturn:
        """Raise the error as a ConfigError."""
        raise ConfigError(f"{self.prog.removeprefix('vario ')}: {message}")
