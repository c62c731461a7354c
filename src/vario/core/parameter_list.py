"""Descriptions of very many parameters, most of which differ only in their names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

NAME = "name"
_TOGETHER = 4096
"""Descriptions that are encoded at a time."""


class ParameterList(Sequence[dict[str, Any]]):
    """Reads like a list of `{"name": ..., "shape": ...}`, and stores equal descriptions once."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.kinds: list[dict[str, Any]] = []
        """Each description without its name; equal ones are the same object."""

    def add(self, name: str, kind: dict[str, Any]) -> None:
        """Add one parameter."""
        self.names.append(name)
        self.kinds.append(kind)

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, at: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, at: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, at: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(at, slice):
            return [self[index] for index in range(len(self))[at]]
        return {NAME: self.names[at], **self.kinds[at]}

    def texts(self) -> Iterator[str]:
        """Yield the list as JSON, in pieces."""
        known: dict[int, str] = {}
        quoted = json.encoder.encode_basestring_ascii
        for first in range(0, len(self), _TOGETHER):
            described = []
            for name, kind in zip(self.names[first : first + _TOGETHER], self.kinds[first:], strict=False):
                text = known.get(id(kind))
                if text is None:
                    # With a name, so that it begins with a comma.
                    text = known[id(kind)] = json.dumps({"": 0, **kind}, default=str).removeprefix('{"": 0')
                described.append(f'{{"{NAME}": {quoted(name)}{text}')
            yield (", " if first else "[") + ", ".join(described)
        yield "]" if len(self) else "[]"


def json_texts(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield an object as JSON, in pieces, so that a ParameterList in it is never encoded as a whole."""
    before = "{"
    for key, value in content.items():
        yield f"{before}{json.dumps(key)}: "
        if isinstance(value, ParameterList):
            yield from value.texts()
        else:
            yield json.dumps(value, default=str)
        before = ", "
    yield "}" if content else "{}"


def names_of(parameters: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of parameters, in order."""
    return list(parameters.names) if isinstance(parameters, ParameterList) else [found[NAME] for found in parameters]


def by_kind(parameters: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Sequence[str], Mapping[str, Any]]]:
    """Yield names of parameters with equal descriptions, with that description; for a plain list one by one."""
    if not isinstance(parameters, ParameterList):
        yield from (((str(found[NAME]),), found) for found in parameters)
        return
    names: dict[int, tuple[list[str], dict[str, Any]]] = {}
    for name, kind in zip(parameters.names, parameters.kinds, strict=True):
        found = names.get(id(kind))
        if found is None:
            found = names[id(kind)] = [], kind
        found[0].append(name)
    yield from names.values()
