"""`target` and `invert`: which parameters are watched.

An entry is a piece of a name or a regular expression, searched anywhere in the name. A number is never split:
`layers.1` selects layer 1, not layers 10 to 19. In an entry without regular-expression characters a dot is a dot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from vario.compat.mindformers.checks import Problems

_PLAIN = re.compile(r"[\w.-]+")
_NOT_INSIDE_A_NUMBER = r"(?:(?<!\d)|(?!\d))"


def check_targets(key: str, targets: Sequence[str], problems: Problems) -> None:
    """Note every entry that is not a regular expression."""
    for target in targets:
        try:
            re.compile(target)
        except re.error as error:
            hint = ". Write '.*' for all parameters" if target == "*" else ""
            problems.add(key, f"'{target}' is not a regular expression: {error}{hint}")


@dataclass(frozen=True)
class Targets:
    """Chooses parameters by name; without entries, all of them."""

    entries: tuple[str, ...] = ()
    invert: bool = False

    @cached_property
    def _expressions(self) -> list[re.Pattern[str]]:
        return [_compiled(entry) for entry in self.entries]

    def chosen(self, names: Iterable[str]) -> frozenset[str]:
        """Return the chosen ones of these names."""
        return frozenset(name for name in names if self.choose(name))

    def choose(self, name: str) -> bool:
        """Whether a parameter is chosen."""
        if not self.entries:
            return not self.invert
        return any(expression.search(name) for expression in self._expressions) != self.invert

    def unmatched(self, names: Sequence[str]) -> list[str]:
        """Return the entries that no name matches."""
        pairs = zip(self.entries, self._expressions, strict=True)
        return [entry for entry, expression in pairs if not any(map(expression.search, names))]


def _compiled(entry: str) -> re.Pattern[str]:
    pattern = re.escape(entry) if _PLAIN.fullmatch(entry) else entry
    return re.compile(f"{_NOT_INSIDE_A_NUMBER}(?:{pattern}){_NOT_INSIDE_A_NUMBER}")
