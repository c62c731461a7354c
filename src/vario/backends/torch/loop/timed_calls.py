"""How long a loop waits for its loader and writes checkpoints, by timing the calls of torch that do it.

Only calls on the training thread count: what worker processes and background threads do costs the loop nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from time import perf_counter
from typing import Any

from torch.utils.data import dataloader

from vario.backends.protocols.events import Undo
from vario.core import last_guard

Timed = Callable[[str, float, float], None]
"""Takes what it was, when it began and when it ended."""

LOADER, CHECKPOINT = "loader", "checkpoint"
_SAVING = (
    ("torch", "save"),
    ("torch.serialization", "save"),
    ("torch.distributed.checkpoint", "save"),
    ("safetensors.torch", "save_file"),
    # Callers that have imported `save_file` by its name meet this one.
    ("safetensors.torch", "serialize_file"),
)
"""Functions that write checkpoints, where their module has been imported when watching begins."""


@dataclass(eq=False)
class _Place:
    """A function that is replaced while anyone follows its calls."""

    owner: Any
    name: str
    original: Any
    ours: Any = None
    timed: list[Timed] = field(default_factory=list)
    called: list[Callable[[Any], None]] = field(default_factory=list)


_places: dict[tuple[int, str], _Place] = {}
_busy: set[tuple[str, int]] = set()
"""Kinds of calls in progress, by thread: a loader may read from another loader."""


def follow(timed: Timed, workers_came: Callable[[int], None]) -> Undo:
    """Tell what loaders and checkpoints take, and how many workers prepare each batch, until the undo."""
    saving = [(sys.modules[module], name) for module, name in _SAVING if hasattr(sys.modules.get(module), name)]
    undos = [_follow(CHECKPOINT, owner, name, timed) for owner, name in saving]
    undos.append(_follow(LOADER, dataloader.DataLoader, "__iter__", timed))

    def batch_comes(iterator: Any) -> None:
        workers_came(getattr(iterator, "_num_workers", -1))

    # With each batch: the loop may have begun before watching did.
    undos.append(_follow(LOADER, dataloader._BaseDataLoaderIter, "__next__", timed, batch_comes))

    def undo() -> None:
        for each in undos:
            each()

    return undo


def _follow(kind: str, owner: Any, name: str, timed: Timed, called: Callable[[Any], None] | None = None) -> Undo:
    key = id(owner), name
    if key not in _places:
        _places[key] = _replace(kind, owner, name)
    place = _places[key]
    place.timed.append(timed)
    place.called += [called] * (called is not None)  # type: ignore[list-item]

    def undo() -> None:
        place.timed.remove(timed)
        if called is not None:
            place.called.remove(called)
        if not place.timed and _places.pop(key, None) is not None and vars(owner).get(name) is place.ours:
            setattr(owner, name, place.original)

    return undo


def _replace(kind: str, owner: Any, name: str) -> _Place:
    original = vars(owner)[name]
    place = _Place(owner, name, original)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        here = kind, get_ident()
        if here in _busy or not place.timed:
            return original(*args, **kwargs)
        for call in tuple(place.called):
            last_guard.safely(call, args[0])
        _busy.add(here)
        began = perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            _busy.discard(here)
            ended = perf_counter()
            for tell in tuple(place.timed):
                last_guard.safely(tell, kind, began, ended)

    place.ours = wrapped
    setattr(owner, name, wrapped)
    return place
