"""Find tensors in what modules take and return."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

MAX_DEPTH = 6
"""Outputs nested deeper than this are caches and the like, not activations."""

Tensor = TypeVar("Tensor")


def leaves(kind: type[Tensor], value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors in nested tuples, lists, dicts and dataclasses, each with its dotted path below `path`."""
    if isinstance(value, kind):
        yield path, value
    elif depth >= MAX_DEPTH:
        return
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(kind, item, f"{path}.{key}", depth + 1)
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from leaves(kind, item, f"{path}.{index}", depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from leaves(kind, getattr(value, field.name, None), f"{path}.{field.name}", depth + 1)


def inputs(kind: type[Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors a module was called with: `input` for one positional argument, else `input.0`, ..."""
    yield from leaves(kind, args[0] if len(args) == 1 else args, "input")
    for key, value in kwargs.items():
        yield from leaves(kind, value, f"input.{key}")
