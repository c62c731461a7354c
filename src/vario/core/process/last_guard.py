"""The last guard: an error inside vario never reaches the training that called it.

Parts of a Monitor have guards of their own, which switch a failed part off and name it. This one stands where a
framework or a script calls vario, around what has no other guard.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from vario.core.errors import ConfigError, TrainingStop, VarioError

log = logging.getLogger("vario")

Told = Callable[[Exception], None]
P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")

_told: list[Told] = []
_logged: set[str] = set()
"""What nobody was told of: a hook may fail in every call."""
MOST_LOGGED = 32


def follow(call: Told) -> Callable[[], None]:
    """Call `call` with every error that got this far, until the undo; it may raise it again."""
    _told.append(call)
    return lambda: _told.remove(call)


def failed(error: Exception) -> None:
    """Report an error instead of raising it."""
    if isinstance(error, (TrainingStop, ConfigError)):
        raise error  # on purpose: what was asked for ends training, or cannot be done
    text = f"{type(error).__name__}: {error}"
    if not _told and text not in _logged and len(_logged) < MOST_LOGGED:
        _logged.add(text)
        log.warning("vario failed; training continues. %s", text)
    for tell in tuple(_told):
        tell(error)


def safely(call: Callable[..., object], *args: Any, **named: Any) -> None:
    """Call a function and report its error instead of raising it."""
    try:
        call(*args, **named)
    except Exception as error:  # noqa: BLE001 - the failure policy
        failed(error)


def value(call: Callable[[], T], otherwise: T) -> T:
    """Return what a function returns; `otherwise` if it fails."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - the failure policy
        failed(error)
        return otherwise


def never_raises(call: Callable[P, object]) -> Callable[P, None]:
    """Return the same function, which reports its errors instead of raising them."""

    @functools.wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            call(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the failure policy
            failed(error)

    return run


def guards_events(kind: type[C]) -> type[C]:
    """Let the methods of a trainer's callback (`on_...`) report their errors instead of raising them.

    What a user has to know is still raised: a model or an option that cannot be used.
    """
    for name, method in list(vars(kind).items()):
        if name.startswith("on_"):
            setattr(kind, name, _event(method))
    return kind


def _event(method: Callable[..., object]) -> Callable[..., None]:
    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            method(*args, **kwargs)
        except VarioError:
            raise
        except Exception as error:  # noqa: BLE001 - the failure policy
            failed(error)

    return run
