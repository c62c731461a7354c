"""Replace functions and methods of other packages while anyone follows their calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from vario.backends.protocols.events import Undo


@dataclass(eq=False)
class _Place:
    replacement: Any
    original: Any
    num_users: int = 0


_places: dict[tuple[int, str], _Place] = {}
_originals: weakref.WeakKeyDictionary[FunctionType, Any] = weakref.WeakKeyDictionary()
"""What each replacement replaces. Not an attribute of it: a wrapper around it would have a copy."""


def replace(owner: dict[str, Any] | type, key: str, make: Callable[[Any], Any]) -> Undo:
    """Replace a function in a namespace, or a method of a class, with `make(original)`; the last undo restores it.

    If something else has replaced it again meanwhile, that stays, and calls ours, which nobody follows.
    """
    place = _places.get((id(owner), key))
    if place is None or _namespace(owner).get(key) is not place.replacement:
        place = _places[id(owner), key] = _replaced(owner, key, make)
    found = place
    found.num_users += 1

    def undo() -> None:
        found.num_users -= 1
        if found.num_users:
            return
        if _places.get((id(owner), key)) is found:
            del _places[id(owner), key]
        if _namespace(owner).get(key) is found.replacement:
            _set(owner, key, found.original)

    return undo


def original_of(function: Any) -> Any:
    """Return the original of a replacement; anything else is returned unchanged.

    Only functions are asked: a namespace may hold objects that import a package, or raise, when an attribute is read.
    """
    return _originals.get(function, function) if type(function) is FunctionType else function


def _replaced(owner: dict[str, Any] | type, key: str, make: Callable[[Any], Any]) -> _Place:
    # A replacement left behind, which others restored later, is not replaced a second time.
    original = original_of(_namespace(owner)[key])
    replacement = make(original)
    _originals[replacement] = original
    _set(owner, key, replacement)
    return _Place(replacement, original)


def _namespace(owner: dict[str, Any] | type) -> Mapping[str, Any]:
    return owner if isinstance(owner, dict) else vars(owner)


def _set(owner: dict[str, Any] | type, key: str, value: Any) -> None:
    if isinstance(owner, dict):
        owner[key] = value
    else:
        setattr(owner, key, value)
