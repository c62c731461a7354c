"""Sends incidents to a Python function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from vario.core.errors import ConfigError
from vario.notices.message import Message
from vario.rules.api.alerts import Incident


class Callback:
    """A function, called with the `Incident`."""

    name: ClassVar[str] = "callback"

    def __init__(self, options: Callable[[Incident], Any], rank: int | None = None) -> None:
        self._call = options

    @staticmethod
    def check(options: Any) -> None:
        """Raise ConfigError for anything that is not callable."""
        if not callable(options):
            raise ConfigError(
                f"notify.callback: expected a function of one argument, the incident, got {options!r}. "
                "In a config file, use command."
            )

    @staticmethod
    def shown(options: Any) -> str:
        """The function's name."""
        return str(getattr(options, "__qualname__", type(options).__qualname__))

    def send(self, message: Message) -> None:
        """Call the function."""
        self._call(message.incident)
