"""Choosing targets by name, glob or regular expression."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from vario.core.errors import ConfigError
from vario.core.text import suggestion


def pattern_matcher(pattern: str, key: str = "targets") -> re.Pattern[str]:
    """Compile a pattern: a regular expression after `re:`, otherwise a glob."""
    if pattern.startswith("re:"):
        try:
            return re.compile(pattern[3:])
        except re.error as error:
            raise ConfigError(f"{key}: '{pattern}' is not a regular expression: {error}") from error
    return re.compile(fnmatch.translate(pattern))


def place_matcher(pattern: str, key: str) -> re.Pattern[str]:
    """Compile a place in the code to search for in a call stack: `train.py[31]`, or a regular expression after
    `re:`."""
    if pattern.startswith("re:"):
        return pattern_matcher(pattern, key)
    # `train.py[31]` must not match `pretrain.py`.
    return re.compile(r"(?<![\w.-])" + re.escape(pattern))


def ancestors(name: str) -> list[str]:
    """Yield a dotted name and every parent module's name, the name itself first."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


def modules_matching(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the modules that match any of the patterns; raises for a pattern that matches none."""
    expressions = [pattern_matcher(pattern) for pattern in patterns]
    for pattern, expression in zip(patterns, expressions, strict=True):
        if not any(expression.fullmatch(name) for name in names):
            raise ConfigError(f"'{pattern}' matches no module of this model. {suggestion(pattern, names)}")
    return [name for name in names if any(expression.fullmatch(name) for expression in expressions)]


class Choice(Protocol):
    """Chooses targets of a model by their names."""

    def modules(self, names: Iterable[str]) -> list[str]:
        """Return the selected modules."""

    def parameters(self, names: Iterable[str]) -> list[str]:
        """Return the selected parameters."""

    def check(self, modules: Sequence[str], parameters: Sequence[str]) -> None:
        """Raise ConfigError for a choice that does not fit a model with these names."""


@dataclass(frozen=True)
class Selector:
    """Selects modules by name, and parameters by their name or the name of a module they belong to.

    Without patterns everything is selected; `invert` selects what the patterns do not match.
    """

    patterns: Sequence[str] = ()
    invert: bool = False

    def modules(self, names: Iterable[str]) -> list[str]:
        """Return the selected modules."""
        expressions = self._expressions()
        return [name for name in names if self._chosen([name], expressions)]

    def parameters(self, names: Iterable[str]) -> list[str]:
        """Return the selected parameters."""
        expressions = self._expressions()
        if not expressions:
            return list(names)
        return [name for name in names if self._chosen(ancestors(name), expressions)]

    def check(self, modules: Sequence[str], parameters: Sequence[str]) -> None:
        """Raise ConfigError for a pattern that matches no name, and for patterns that select nothing."""
        names = [*modules, *parameters]
        for pattern in self.patterns:
            expression = pattern_matcher(pattern)
            if not any(expression.fullmatch(name) for name in names):
                raise ConfigError(f"targets: '{pattern}' matches nothing in this model. {suggestion(pattern, names)}")

        if not self.modules(modules) and not self.parameters(parameters):
            raise ConfigError("targets: nothing is left to watch. Remove `invert`, or some of the patterns.")

    def _expressions(self) -> list[re.Pattern[str]]:
        return [pattern_matcher(pattern) for pattern in self.patterns]

    def _chosen(self, names: Sequence[str], expressions: list[re.Pattern[str]]) -> bool:
        if not expressions:
            return True
        matched = any(expression.fullmatch(name) for expression in expressions for name in names)
        return matched != self.invert
