"""Notices: where incidents are sent besides the log.

A module in this folder adds a channel by defining a class with a `name`. It is created with the options under that name
in `notify`, sends one Message at a time from its own thread, and raises if that fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from vario.core.errors import ConfigError
from vario.core.registry import Registry
from vario.core.text import unknown
from vario.notices.message import Message
from vario.rules.api.alerts import SEVERITIES

LEAST = "least"
"""The key of `notify` that is not a channel: the lowest severity to send."""
DEFAULT_LEAST = "warn"


class Notice(Protocol):
    """One channel for incidents."""

    name: ClassVar[str]

    def __init__(self, options: Any, rank: int | None = None) -> None:
        """`rank` is set on ranks other than the leading one; raises ConfigError for options that cannot work."""
        ...

    @staticmethod
    def check(options: Any) -> None:
        """Raise a ConfigError that names the key under `notify`, for options that are wrong on any machine."""
        ...

    @staticmethod
    def shown(options: Any) -> Any:
        """Return the options as stored in the run, which anybody may read: plain values without secrets."""
        ...

    def send(self, message: Message) -> None:
        """Send it, however long that takes; raises if it fails."""
        ...


def _notice_name(part: object) -> str | None:
    name = getattr(part, "name", None)
    is_notice = isinstance(part, type) and isinstance(name, str) and hasattr(part, "send") and hasattr(part, "shown")
    return name if is_notice else None


NOTICES: Registry[type[Notice]] = Registry("notices", __name__, _notice_name)


def as_table(notify: Any) -> dict[str, Any]:
    """Return the option `notify` as a table; a function alone becomes a callback."""
    if callable(notify):
        return {"callback": notify}
    if not isinstance(notify, Mapping):
        raise ConfigError(f"notify: expected a function or a table such as {{command = '...'}}, got {notify!r}")
    return dict(notify)


def ways(notify: Any) -> dict[str, Any]:
    """Return the channels of the option and their options."""
    return {name: options for name, options in as_table(notify).items() if name != LEAST}


def least(notify: Any) -> str:
    """Return the lowest severity to send."""
    return str(as_table(notify).get(LEAST, DEFAULT_LEAST))


def check(notify: Any) -> None:
    """Raise ConfigError for unknown channels and invalid options."""
    table = as_table(notify)
    if table.get(LEAST, DEFAULT_LEAST) not in SEVERITIES:
        known = ", ".join(SEVERITIES)
        raise ConfigError(f"notify.least: expected one of {known}, got {table[LEAST]!r}")
    for name, options in ways(table).items():
        if name not in NOTICES:
            raise ConfigError(unknown("notify", str(name), [*NOTICES.names(), LEAST]))
        NOTICES.get(name).check(options)


def shown(notify: Any) -> dict[str, Any]:
    """Return the option without secrets, as stored in the run."""
    table = as_table(notify)
    return {name: value if name == LEAST else NOTICES.get(name).shown(value) for name, value in table.items()}


def without_secrets(notify: Any) -> dict[str, Any]:
    """Return the channels of the option that contain no secrets, so that they can be stored and used again."""
    return {name: value for name, value in shown(notify).items() if value == as_table(notify)[name]}


__all__ = ["NOTICES", "Message", "Notice", "as_table", "check", "least", "shown", "ways", "without_secrets"]
