"""Sends incidents by e-mail."""

from __future__ import annotations

import smtplib
import socket
import ssl
from collections.abc import Mapping, Sequence
from email.message import EmailMessage
from email.utils import formatdate
from typing import Any, ClassVar

from vario.core.errors import ConfigError
from vario.core.text import unknown
from vario.notices.message import Message
from vario.notices.secrets import is_named, reveal

TIMEOUT_SECONDS = 20.0
KEYS = ("to", "host", "port", "from", "user", "password", "starttls")
SSL_PORT = 465


class Email:
    """E-mail through an SMTP server: `to`, `host`, and if needed `port`, `from`, `user`, `password`, `starttls`."""

    name: ClassVar[str] = "email"

    def __init__(self, options: Mapping[str, Any], rank: int | None = None) -> None:
        to = options["to"]
        self._to = [to] if isinstance(to, str) else list(to)
        self._from = options.get("from") or f"vario@{socket.gethostname()}"
        self._host = reveal(options["host"], "notify.email.host")
        self._user = reveal(options["user"], "notify.email.user") if "user" in options else None
        self._password = reveal(options["password"], "notify.email.password") if "password" in options else ""
        self._port = options.get("port", 25 if self._user is None else 587)
        self._starttls = options.get("starttls", self._user is not None and self._port != SSL_PORT)

    @staticmethod
    def check(options: Any) -> None:
        """Raise ConfigError for unknown keys, missing addresses and plain-text passwords."""
        if not isinstance(options, Mapping):
            raise ConfigError(f"notify.email: expected a table such as {{to = '...', host = '...'}}, got {options!r}")
        for key, value in options.items():
            if key not in KEYS:
                raise ConfigError(unknown("notify.email", str(key), KEYS))
            if key in ("host", "from", "user") and (not isinstance(value, str) or not value):
                raise ConfigError(f"notify.email.{key}: expected text, got {value!r}")
        for key in ("to", "host"):
            if key not in options:
                raise ConfigError(f"notify.email: '{key}' is missing")
        _check_addresses(options["to"])
        port = options.get("port", 25)
        if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
            raise ConfigError(f"notify.email.port: expected a port, got {port!r}")
        if not isinstance(options.get("starttls", False), bool):
            raise ConfigError(f"notify.email.starttls: expected true or false, got {options['starttls']!r}")
        if "password" in options and not is_named(options["password"]):
            raise ConfigError(
                "notify.email.password: expected the name of an environment variable, as env:NAME. "
                "Passwords do not belong in a config."
            )
        if ("password" in options) != ("user" in options):
            raise ConfigError("notify.email: set both 'user' and 'password', or neither")

    @staticmethod
    def shown(options: Any) -> dict[str, Any]:
        """Return all options: the password is only the name of an environment variable."""
        return dict(options)

    def send(self, message: Message) -> None:
        """Send the message to all addresses."""
        mail = EmailMessage()
        mail["Subject"] = message.title
        mail["From"] = self._from
        mail["To"] = ", ".join(self._to)
        mail["Date"] = formatdate()
        mail.set_content(message.text)
        context = ssl.create_default_context()
        connect: smtplib.SMTP
        if self._port == SSL_PORT:
            connect = smtplib.SMTP_SSL(self._host, self._port, timeout=TIMEOUT_SECONDS, context=context)
        else:
            connect = smtplib.SMTP(self._host, self._port, timeout=TIMEOUT_SECONDS)
        with connect as server:
            if self._starttls:
                server.starttls(context=context)
            if self._user is not None:
                server.login(self._user, self._password)
            server.send_message(mail)


def _check_addresses(to: Any) -> None:
    addresses = [to] if isinstance(to, str) else to
    is_list = isinstance(addresses, Sequence) and bool(addresses)
    if not is_list or not all(isinstance(address, str) and "@" in address for address in addresses):
        raise ConfigError(f"notify.email.to: expected one address or a list of them, got {to!r}")
