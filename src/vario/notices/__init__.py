"""Notices: where incidents are told besides the log.

A module in this folder adds a way to tell them by defining a class with a `name`: made with what the option `notify`
says under that name, it sends one Message at a time from a thread of its own and raises when that fails.
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
"""The key of `notify` that is no way to tell: the least severity that is told."""
DEFAULT_LEAST = "warn"


class Notice(Protocol):
    """One way to tell an incident."""

    name: ClassVar[str]

    def __init__(self, options: Any, rank: int | None = None) -> None:
        """`rank` where it is not the one that speaks for all; raises a ConfigError for options that cannot work."""
        ...

    @staticmethod
    def check(options: Any) -> None:
        """Raise a ConfigError, which names the key below `notify`, for options that cannot be right anywhere."""
        ...

    @staticmethod
    def shown(options: Any) -> Any:
        """The same options as a run may show them to anybody: plain values without secrets."""
        ...

    def send(self, message: Message) -> None:
        """Tell it, however long that takes; raises when it fails."""
        ...


def _notice_name(part: object) -> str | None:
    name = getattr(part, "name", None)
    is_notice = isinstance(part, type) and isinstance(name, str) and hasattr(part, "send") and hasattr(part, "shown")
    return name if is_notice else None


NOTICES: Registry[type[Notice]] = Registry("notices", __name__, _notice_name)


def as_table(notify: Any) -> dict[str, Any]:
    """What the option `notify` says, as a table: a function alone is told as it is."""
    if callable(notify):
        return {"callback": notify}
    if not isinstance(notify, Mapping):
        raise ConfigError(f"notify: expected a function or a table such as {{command = '...'}}, got {notify!r}")
    return dict(notify)


def ways(notify: Any) -> dict[str, Any]:
    """The ways to tell incidents that the option asks for, and the options of each."""
    return {name: options for name, options in as_table(notify).items() if name != LEAST}


def least(notify: Any) -> str:
    """The least severity that is told."""
    return str(as_table(notify).get(LEAST, DEFAULT_LEAST))


def check(notify: Any) -> None:
    """Refuse ways that do not exist and options that they cannot use."""
    table = as_table(notify)
    if table.get(LEAST, DEFAULT_LEAST) not in SEVERITIES:
        known = ", ".join(SEVERITIES)
        raise ConfigError(f"notify.least: expected one of {known}, got {table[LEAST]!r}")
    for name, options in ways(table).items():
        if name not in NOTICES:
            raise ConfigError(unknown("notify", str(name), [*NOTICES.names(), LEAST]))
        NOTICES.get(name).check(options)


def shown(notify: Any) -> dict[str, Any]:
    """What the option says as a run may show it: without secrets."""
    table = as_table(notify)
    return {name: value if name == LEAST else NOTICES.get(name).shown(value) for name, value in table.items()}


def without_secrets(notify: Any) -> dict[str, Any]:
    """The part of the option that can be written down and used again: ways that show all they say."""
    return {name: value for name, value in shown(notify).items() if value == as_table(notify)[name]}


__all__ = ["NOTICES", "Message", "Notice", "as_table", "check", "least", "shown", "ways", "without_secrets"]
