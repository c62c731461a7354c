"""Parameters of endpoints: one description of each validates and documents it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from vario.core.errors import ConfigError
from vario.core.text import suggestion

MOST_CHARACTERS = 2000
"""The longest name of a target or pattern."""


class Query(Protocol):
    """The query parameters of a request; one may occur several times."""

    def getlist(self, key: Any) -> list[str]:
        """Return all values of a name."""

    def keys(self) -> Iterable[str]:
        """Return all names."""


class BadParameter(ConfigError):
    """An invalid parameter, with its name."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(f"{key}: {text}")
        self.key = key


@dataclass(frozen=True)
class Parameter:
    """One parameter of an endpoint."""

    name: str
    doc: str
    kind: Literal["text", "whole", "switch"] = "text"
    default: Any = None
    low: int | None = None
    high: int | None = None
    """The range of a whole number."""
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    """The pattern of a text, for the documentation; the endpoint validates it."""
    is_required: bool = False
    is_repeated: bool = False
    most: int = 1
    """How often a repeatable one may occur."""

    def read(self, given: Sequence[str]) -> Any:
        """Validate and return the value; a list if it is repeatable."""
        if not given:
            if self.is_required:
                raise BadParameter(self.name, f"is missing. {self.doc}")
            return [] if self.is_repeated else self.default
        if self.is_repeated:
            if len(given) > self.most:
                raise BadParameter(self.name, f"given {len(given)} times; the limit is {self.most}")
            return [self._one(text) for text in given]
        if len(given) > 1:
            raise BadParameter(self.name, "given more than once")
        return self._one(given[0])

    def _one(self, text: str) -> Any:
        if self.kind == "whole":
            return self._whole(text)
        if self.kind == "switch":
            if text not in ("0", "1"):
                raise BadParameter(self.name, f"expected 0 or 1, got '{text[:40]}'")
            return text == "1"
        if len(text) > MOST_CHARACTERS:
            raise BadParameter(self.name, f"expected at most {MOST_CHARACTERS} characters")
        if self.choices and text not in self.choices:
            raise BadParameter(self.name, f"unknown '{text}'. {suggestion(text, self.choices)}")
        if not text and self.is_required:
            raise BadParameter(self.name, f"is empty. {self.doc}")
        return text

    def _whole(self, text: str) -> int:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 18):
            raise BadParameter(self.name, f"expected a whole number, got '{text[:40]}'")
        value = int(text)
        if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            raise BadParameter(self.name, f"expected a number from {self.low} to {self.high}, got {value}")
        return value

    def described(self) -> dict[str, Any]:
        """Return the OpenAPI description."""
        schema: dict[str, Any]
        if self.kind == "whole":
            schema = {"type": "integer"}
            schema |= {} if self.low is None else {"minimum": self.low}
            schema |= {} if self.high is None else {"maximum": self.high}
        elif self.kind == "switch":
            schema = {"type": "string", "enum": ["0", "1"]}
        else:
            schema = {"type": "string", "maxLength": MOST_CHARACTERS}
            schema |= {"enum": list(self.choices)} if self.choices else {}
            schema |= {"pattern": self.pattern} if self.pattern else {}
            schema |= {"minLength": 1} if self.is_required and not self.choices else {}
        if self.is_repeated:
            schema = {"type": "array", "items": schema, "maxItems": self.most}
            schema |= {"minItems": 1} if self.is_required else {}
        elif self.default is not None:
            schema["default"] = ("1" if self.default else "0") if self.kind == "switch" else self.default
        found = {"name": self.name, "in": "query", "description": self.doc, "schema": schema}
        return found | {"required": True} if self.is_required else found


def read_query(parameters: Sequence[Parameter], query: Query) -> Mapping[str, Any]:
    """Return all values by name; raises for an unknown parameter, with the closest known name."""
    known = [parameter.name for parameter in parameters]
    for key in query.keys():  # noqa: SIM118 - a query is no mapping
        if key not in known and key != "token":
            raise BadParameter(key[:40], f"unknown parameter. {suggestion(key[:40], known)}")
    return {parameter.name: parameter.read(query.getlist(parameter.name)) for parameter in parameters}
