"""Reading a block of settings key by key; everything that is wrong with it is collected and told at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from vario.core.errors import ConfigError
from vario.core.text import unknown

SINKS = ("log", "tensorboard")
"""What a `*_format` key accepts."""


class Problems:
    """What is wrong with a file, one line each."""

    def __init__(self, where: str = "") -> None:
        self._where = where
        self.lines: list[str] = []

    def add(self, key: str, text: str) -> None:
        """Note what is wrong with one key."""
        self.lines.append(f"{key}: {text}")

    def expected(self, key: str, what: str, got: object) -> None:
        """Note a value of the wrong kind."""
        self.add(key, f"expected {what}, got {got!r}")

    def raise_if_any(self) -> None:
        """Raise one ConfigError with all of them."""
        if not self.lines:
            return
        where = f"{self._where}: " if self._where else ""
        if len(self.lines) == 1:
            raise ConfigError(f"{where}{self.lines[0]}")
        listed = "\n".join(f"  {line}" for line in self.lines)
        raise ConfigError(f"{where}{len(self.lines)} settings cannot be used\n{listed}")


class Block:
    """One block of settings. Each reader returns the default if the key is missing or its value is wrong."""

    def __init__(self, name: str, content: object, known: Collection[str], problems: Problems) -> None:
        self.name = name
        self.problems = problems
        self._content: Mapping[str, Any] = {}
        if isinstance(content, Mapping):
            self._content = content
            for key in content:
                if key not in known:
                    problems.lines.append(unknown(name, str(key), known))
        else:
            problems.expected(name, "a table of settings", content)

    def __contains__(self, key: str) -> bool:
        return key in self._content

    def raw(self, key: str) -> Any:
        """Return a value as it stands; None if it is missing."""
        return self._content.get(key)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self._content.get(key, default)
        if isinstance(value, bool):
            return value
        self._refuse(key, "true or false", value)
        return default

    def whole(self, key: str, default: int, least: int = 1) -> int:
        """Return a whole number."""
        value = self._content.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        self._refuse(key, f"a whole number of at least {least}", value)
        return default

    def whole_or_none(self, key: str, least: int = 1) -> int | None:
        """Return a whole number, or None for null."""
        return None if self._content.get(key) is None else self.whole(key, least, least)

    def positive(self, key: str, default: float | None) -> float | None:
        """Return a number above 0, or None for null."""
        value = self._content.get(key, default)
        if value is None:
            return None
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
            return float(value)
        self._refuse(key, "a number above 0", value)
        return default

    def text(self, key: str, default: str | None) -> str | None:
        """Return text; null and an empty text are the default."""
        value = self._content.get(key)
        if value is None or value == "":
            return default
        if isinstance(value, str):
            return value
        self._refuse(key, "text", value)
        return default

    def names(self, key: str) -> tuple[str, ...]:
        """Return a list of names; null and an empty list are an empty one."""
        value = self._content.get(key)
        if value is None:
            return ()
        if isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(name, str) for name in value):
            return tuple(value)
        hint = f". Write [{value!r}]" if isinstance(value, str) else ""
        self._refuse(key, "a list of names or regular expressions", value, hint)
        return ()

    def formats(self, key: str) -> frozenset[str]:
        """Return where to write: `log`, `tensorboard`, both, or nothing."""
        value = self._content.get(key)
        if not value and not isinstance(value, (int, float)):
            return frozenset()
        wanted = [value] if isinstance(value, str) else value
        if not isinstance(wanted, Sequence) or not all(isinstance(name, str) for name in wanted):
            self._refuse(key, "'log', 'tensorboard', a list of them, or null", value)
            return frozenset()
        for name in wanted:
            if name not in SINKS:
                self.problems.lines.append(unknown(f"{self.name}.{key}", name, SINKS))
        return frozenset(wanted) & frozenset(SINKS)

    def _refuse(self, key: str, what: str, value: object, hint: str = "") -> None:
        self.problems.add(f"{self.name}.{key}", f"expected {what}, got {value!r}{hint}")
