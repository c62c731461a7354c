"""Listen to a trainer's methods, and pass on what they report."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vario.backends.protocols.events import Undo


@dataclass(frozen=True)
class Listener:
    """What one Monitor wants from trainers."""

    is_ours: Callable[[Iterable[Any]], bool]
    """Whether any of these models is the watched one."""
    report: Callable[[Mapping[str, Any]], None]
    """Takes what a trainer reports, numbers and other values."""
    losses_add_up: Callable[[], None]
    """Called if the trainer makes the losses of a step's passes shares of one."""
    step: Callable[[], int]
    """The number of the step in progress."""
    guarded: Callable[[Callable[..., None]], Callable[..., None]]
    """Returns the same call, which never raises into the trainer."""


_told: dict[tuple[type, str], list[Callable[..., None]]] = {}


def after_calls(owner: type, method: str, call: Callable[..., None]) -> Undo:
    """Run `call` with the arguments of each call of a class's method, after it has returned."""
    key = owner, method
    if key not in _told:
        _told[key] = []
        _replace(owner, method, _told[key])
    calls = _told[key]
    calls.append(call)

    def undo() -> None:
        calls.remove(call)
        current = vars(owner).get(method)
        # If something else has replaced it again, that stays, and ours reports to nobody.
        if not calls and getattr(current, "_vario_calls", None) is calls:
            setattr(owner, method, current.__wrapped__)  # type: ignore[union-attr]
            _told.pop(key, None)

    return undo


def _replace(owner: type, method: str, calls: list[Callable[..., None]]) -> None:
    original = vars(owner)[method]

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        for call in tuple(calls):
            call(*args, **kwargs)
        return result

    wrapped._vario_calls = calls  # type: ignore[attr-defined]
    setattr(owner, method, wrapped)
