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
    """A pattern as a compiled expression: `re:` in front makes it a regular expression, otherwise it is a glob."""
    if pattern.startswith("re:"):
        try:
            return re.compile(pattern[3:])
        except re.error as error:
            raise ConfigError(f"{key}: '{pattern}' is not a regular expression: {error}") from error
    return re.compile(fnmatch.translate(pattern))


def place_matcher(pattern: str, key: str) -> re.Pattern[str]:
    """A place in the code, to be searched for in a call stack: `train.py[31]` as it stands, a pattern after `re:`."""
    if pattern.startswith("re:"):
        return pattern_matcher(pattern, key)
    # `train.py[31]` is no place in `pretrain.py`.
    return re.compile(r"(?<![\w.-])" + re.escape(pattern))


def ancestors(name: str) -> list[str]:
    """A dotted name and every module name above it, the name itself first."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


def modules_matching(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """The modules of these names that match any of the patterns; a pattern that matches none is refused."""
    expressions = [pattern_matcher(pattern) for pattern in patterns]
    for pattern, expression in zip(patterns, expressions, strict=True):
        if not any(expression.fullmatch(name) for name in names):
            raise ConfigError(f"'{pattern}' matches no module of this model. {suggestion(pattern, names)}")
    return [name for name in names if any(expression.fullmatch(name) for expression in expressions)]


class Choice(Protocol):
    """Chooses targets of a model by their names."""

    def modules(self, names: Iterable[str]) -> list[str]:
        """The chosen modules."""

    def parameters(self, names: Iterable[str]) -> list[str]:
        """The chosen parameters."""

    def check(self, modules: Sequence[str], parameters: Sequence[str]) -> None:
        """Refuse a choice that does not fit a model with these names."""


@dataclass(frozen=True)
class Selector:
    """Chooses modules by their own name, and parameters by their own name or that of a module they belong to.

    No patterns choose everything; `invert` chooses what the patterns leave out.
    """

    patterns: Sequence[str] = ()
    invert: bool = False

    def modules(self, names: Iterable[str]) -> list[str]:
        """The chosen modules."""
        expressions = self._expressions()
        return [name for name in names if self._chosen([name], expressions)]

    def parameters(self, names: Iterable[str]) -> list[str]:
        """The chosen parameters."""
        expressions = self._expressions()
        if not expressions:
            return list(names)
        return [name for name in names if self._chosen(ancestors(name), expressions)]

    def check(self, modules: Sequence[str], parameters: Sequence[str]) -> None:
        """Refuse a pattern that none of these names matches, and patterns that leave nothing."""
        names = [*modules, *parameters]
        for pattern in self.patterns:
            expression = pattern_matcher(pattern)
            if not any(expression.fullmatch(name) for name in names):
                raise ConfigError(f"targets: '{pattern}' matches nothing in this model. {suggestion(pattern, names)}")

        if not self.modules(modules) and not self.parameters(parameters):
            raise ConfigError("targets: they leave nothing to watch. Drop `invert`, or some of them.")

    def _expressions(self) -> list[re.Pattern[str]]:
        return [pattern_matcher(pattern) for pattern in self.patterns]

    def _chosen(self, names: Sequence[str], expressions: list[re.Pattern[str]]) -> bool:
        if not expressions:
            return True
        matched = any(expression.fullmatch(name) for expression in expressions for name in names)
        return matched != self.invert
