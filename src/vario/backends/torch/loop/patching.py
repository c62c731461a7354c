"""Replace functions of other packages in their namespaces while anyone follows their calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from vario.backends.protocols.events import Undo

_MARK = "_vario_replaces"


@dataclass(eq=False)
class _Place:
    replacement: Any
    original: Any
    num_users: int = 0


_places: dict[tuple[int, str], _Place] = {}


def replace(namespace: dict[str, Any], key: str, make: Callable[[Any], Any]) -> Undo:
    """Replace a function in a namespace with `make(original)`; the last undo restores the original.

    If something else has replaced it again meanwhile, that stays, and calls ours, which nobody follows.
    """
    place = _places.get((id(namespace), key))
    if place is None or namespace.get(key) is not place.replacement:
        place = _places[id(namespace), key] = _replaced(namespace, key, make)
    found = place
    found.num_users += 1

    def undo() -> None:
        found.num_users -= 1
        if found.num_users:
            return
        if _places.get((id(namespace), key)) is found:
            del _places[id(namespace), key]
        if namespace.get(key) is found.replacement:
            namespace[key] = found.original

    return undo


def original_of(function: Any) -> Any:
    """Return the original of a replacement; anything else is returned unchanged.

    Only functions are asked: a namespace may hold objects that import a package, or raise, when an attribute is read.
    """
    return vars(function).get(_MARK, function) if type(function) is FunctionType else function


def _replaced(namespace: dict[str, Any], key: str, make: Callable[[Any], Any]) -> _Place:
    # A replacement left behind, which others restored later, is not replaced a second time.
    original = original_of(namespace[key])
    replacement = make(original)
    setattr(replacement, _MARK, original)
    namespace[key] = replacement
    return _Place(replacement, original)
