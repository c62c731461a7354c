"""JSON schemas of the types in `bodies`, as `answers.encode` writes their values."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np

from vario.core.docstrings import field_docs

Schema = dict[str, Any]

PLACE = "#/components/schemas/"
PLAIN: dict[object, Schema] = {
    str: {"type": "string"},
    Path: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    # NaN and Inf become null.
    float: {"type": ["number", "null"]},
    type(None): {"type": "null"},
    Any: {},
}


class Schemas:
    """The schemas of all requested types, and of types inside them, by name."""

    def __init__(self) -> None:
        self.named: dict[str, Schema] = {}
        self._types: dict[str, object] = {}

    def of(self, kind: Any) -> Schema:
        """Return the schema of a type; a reference if the type has fields."""
        if kind in PLAIN:
            return dict(PLAIN[kind])
        if is_typeddict(kind) or dataclasses.is_dataclass(kind):
            return self._reference(kind)
        origin, inside = get_origin(kind), get_args(kind)
        if origin is Literal:
            return {"type": "string", "enum": list(inside)}
        if origin in (Union, types.UnionType):
            return _any_of([self.of(one) for one in inside])
        if origin is np.ndarray:
            return {"type": "array", "items": self.of(_number_type(get_args(inside[1])[0]))}
        if origin is tuple and inside[1] is not Ellipsis:
            length = {"minItems": len(inside), "maxItems": len(inside)}
            if len(set(inside)) == 1:  # most tools know `items`, not all know `prefixItems`
                return {"type": "array", "items": self.of(inside[0]), **length}
            return {"type": "array", "prefixItems": [self.of(one) for one in inside], **length}
        if origin in (list, tuple, Sequence):
            return {"type": "array", "items": self.of(inside[0])}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.of(inside[1])}
        raise TypeError(f"{kind} has no schema")

    def _reference(self, kind: Any) -> Schema:
        name = kind.__name__
        if self._types.setdefault(name, kind) is not kind:
            raise TypeError(f"two types are named {name}")
        if name not in self.named:
            self.named[name] = {}  # a type may contain itself
            self.named[name] |= self._fields(kind)
        return {"$ref": PLACE + name}

    def _fields(self, kind: Any) -> Schema:
        hints, docs = get_type_hints(kind), field_docs(kind)
        properties = {
            name: self.of(hint) | ({"description": docs[name]} if name in docs else {}) for name, hint in hints.items()
        }
        optional: frozenset[str] = getattr(kind, "__optional_keys__", frozenset())
        return {
            "type": "object",
            "description": inspect.cleandoc(kind.__doc__ or ""),
            "properties": properties,
            "required": [name for name in hints if name not in optional],
        }


def _number_type(scalar: Any) -> type[object]:
    kind = get_origin(scalar) or scalar
    if issubclass(kind, np.floating):
        return float
    return bool if issubclass(kind, np.bool_) else int


def _any_of(schemas: list[Schema]) -> Schema:
    """Combine schemas: into one list of types if that is enough."""
    if all(set(one) == {"type"} for one in schemas):
        names = [name for one in schemas for name in ([one["type"]] if isinstance(one["type"], str) else one["type"])]
        return {"type": list(dict.fromkeys(names))}
    return {"anyOf": schemas}
