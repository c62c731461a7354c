"""How long a loop waits for its loader and writes checkpoints, by timing the calls of torch that do it.

Only calls on the training thread count: what worker processes and background threads do costs the loop nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Any

from torch.utils.data import dataloader

from vario.backends.protocols.events import Undo
from vario.backends.torch.loop.patching import replace
from vario.core.process import last_guard

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


Follower = tuple[Timed, Callable[[int], None]]
_followers: list[Follower] = []
_busy: set[tuple[str, int]] = set()
"""Kinds of calls in progress, by thread: a loader may read from another loader."""


def follow(timed: Timed, workers_came: Callable[[int], None]) -> Undo:
    """Tell what loaders and checkpoints take, and how many workers prepare each batch, until the undo."""
    modules = [(vars(sys.modules[module]), name) for module, name in _SAVING if module in sys.modules]
    undos = [replace(module, name, _saving) for module, name in modules if name in module]
    undos.append(replace(dataloader.DataLoader, "__iter__", _loading))
    # With each batch: the loop may have begun before watching did.
    undos.append(replace(dataloader._BaseDataLoaderIter, "__next__", _next_batch))
    follower = timed, workers_came
    _followers.append(follower)

    def undo() -> None:
        _followers.remove(follower)
        for each in undos:
            each()

    return undo


def _saving(original: Callable[..., Any]) -> Callable[..., Any]:
    return _timed(CHECKPOINT, original)


def _loading(original: Callable[..., Any]) -> Callable[..., Any]:
    return _timed(LOADER, original)


def _next_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    def batch_comes(iterator: Any, *_: Any) -> None:
        for _timed, workers_came in tuple(_followers):
            workers_came(getattr(iterator, "_num_workers", -1))

    return _timed(LOADER, original, batch_comes)


def _timed(
    kind: str, original: Callable[..., Any], called: Callable[..., None] = lambda *_: None
) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        here = kind, get_ident()
        if here in _busy or not _followers:
            return original(*args, **kwargs)
        last_guard.safely(called, *args)
        _busy.add(here)
        began = perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            _busy.discard(here)
            ended = perf_counter()
            for tell, _ in tuple(_followers):
                last_guard.safely(tell, kind, began, ended)

    return wrapped
