"""Sorts targets in model order, from the first layer to the last."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from vario.core.records import ROOT
from vario.core.run_format import STRUCTURE
from vario.runs.reader import SIDED, RunReader

_ORDERS: WeakKeyDictionary[RunReader, dict[str, tuple[dict[str, int], list[str], list[str]]]] = WeakKeyDictionary()
"""By run and quantity: the names that were sorted last, the positions used, and the order."""
_PLACES: WeakKeyDictionary[RunReader, tuple[tuple[int, int], dict[str, int]]] = WeakKeyDictionary()
"""By run: the structure that was read, and the version of the file, which takes megabytes for a large model."""


def model_order(run: RunReader, quantity: str, observed: Sequence[str]) -> list[str]:
    """Sort names in model order: gradients are observed from the last layer to the first.

    If a tensor has several numbers (`:change`, `:ratio`), each kind is listed in model order, one after another; the
    sides of a module stay together. Names that are not in the model keep the order of observation.
    """
    if quantity == "scalar" or not run.ranks:
        return list(observed)
    places = _places(run)
    known = _ORDERS.setdefault(run, {})
    if quantity not in known or known[quantity][0] is not places or known[quantity][1] != list(observed):
        known[quantity] = places, list(observed), _ordered(quantity, places, observed)
    return list(known[quantity][2])


def _ordered(quantity: str, places: dict[str, int], observed: Sequence[str]) -> list[str]:
    unknown = len(places)
    kinds: dict[str, int] = {}
    keys: dict[str, tuple[int, int]] = {}
    for name in observed:
        part, _, kind = name.partition(":")
        group = 0 if quantity in SIDED else kinds.setdefault(kind, len(kinds))
        keys[name] = group, places.get(part, unknown)
    return sorted(observed, key=keys.__getitem__)


def _places(run: RunReader) -> dict[str, int]:
    """The position of each module and parameter."""
    rank = run.ranks[0]
    try:
        status = (run.path / f"rank{rank}" / STRUCTURE).lstat()
    except OSError:
        return {}
    stamp = status.st_mtime_ns, status.st_ino
    if run in _PLACES and _PLACES[run][0] == stamp:
        return _PLACES[run][1]
    structure = run.structure(rank)
    places = {str(part.get("name")): at for at, part in enumerate(structure.get("modules") or [])}
    places[ROOT] = places.pop("", -1)
    places.update((str(part.get("name")), at) for at, part in enumerate(structure.get("parameters") or []))
    _PLACES[run] = stamp, places
    return places
